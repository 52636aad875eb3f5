//! Everything delivered once more because somebody asked for it.

use tokio_postgres::{AsyncMessage, NoTls};
use trellara_applier::channel;
use trellara_applier::rewind::{Answer, Report, Request, answer_channel};
use trellara_envelope::HaltCode;

use crate::dedup::{sql, written_down};
use crate::flow::{Flow, PATIENCE};

/// Asks for a rewind and waits for its end.
async fn rewind(flow: &Flow) -> Answer {
    let (listener, mut connection) = tokio_postgres::connect(&flow.target.url, NoTls)
        .await
        .unwrap();
    let (heard, mut answers) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(Ok(message)) =
            std::future::poll_fn(|context| connection.poll_message(context)).await
        {
            if let AsyncMessage::Notification(one) = message {
                let _ = heard.send(one.payload().to_owned());
            }
        }
    });
    let answer = answer_channel(&flow.name);
    listener
        .batch_execute(&format!("LISTEN \"{answer}\""))
        .await
        .unwrap();
    let request = Request {
        token: "a-test".to_owned(),
    };
    listener
        .execute(
            "SELECT pg_notify($1, $2)",
            &[&channel(&flow.name), &request.payload()],
        )
        .await
        .unwrap();
    let wait = async {
        loop {
            let payload = answers.recv().await.expect("a connection");
            match Answer::parse(&payload, "a-test") {
                Some(Answer::Began { .. }) | None => {}
                Some(end) => return end,
            }
        }
    };
    tokio::time::timeout(PATIENCE, wait)
        .await
        .expect("an answer")
}

#[tokio::test]
async fn a_rewind_skips_thousands_and_writes_nothing() {
    for version in [15, 18] {
        let mut flow = Flow::new(version).await;
        flow.marker().await;
        let ids: Vec<[i32; 1]> = (0..100).map(|id| [id]).collect();
        let hundred: Vec<&[i32]> = ids.iter().map(<[i32; 1]>::as_slice).collect();
        for round in 0..50 {
            flow.bundle(&hundred).await;
            if round % 10 == 9 {
                flow.marker().await;
                flow.large(&[1, 2], |_| {}).await;
            }
        }
        let applier = flow.start();
        flow.caught_up().await;
        written_down(&mut flow).await;
        let before = flow.target.checkpoint(&flow.name).await;
        let Answer::Done(report) = rewind(&flow).await else {
            panic!("not done");
        };
        assert_eq!(report.transactions, 5005, "{report:?}");
        assert_eq!(report.rows_written, 0, "{report:?}");
        assert_eq!((report.first, report.until), (1, flow.sequence));
        assert!((1..=60).contains(&report.probes), "{report:?}");
        assert_eq!(flow.target.checkpoint(&flow.name).await, before);
        // It goes on where it stood.
        flow.bundle(&[&[5000]]).await;
        flow.caught_up().await;
        let snapshot = applier.status.snapshot();
        assert_eq!(snapshot.duplicate_transactions, 5005);
        assert_eq!(snapshot.transactions, 5006);
        applier.stop().await;
        let rows = flow.target.rows().await;
        assert!(rows.ends_with("5000:1"), "{rows}");
    }
}

/// A rewind proves what it reads: a transaction that is not in the ledger is not passed by.
#[tokio::test]
async fn a_rewind_over_a_transaction_that_the_ledger_lacks_fails_by_name() {
    let (flow, applier) = Flow::applied(18, &[&[1]]).await;
    sql(
        &flow,
        "UPDATE trellara.applied SET hashes = decode(repeat('ab', 16), 'hex') \
          WHERE length(hashes) > 0",
    )
    .await;
    let answer = rewind(&flow).await;
    let Answer::Failed { reason } = answer else {
        panic!("{answer:?}");
    };
    assert!(reason.starts_with("DIVERGED"), "{reason}");
    assert_eq!(applier.halt().await.code, HaltCode::Diverged);
}

#[tokio::test]
async fn a_rewind_of_a_purged_stream_has_nothing_to_read() {
    let mut flow = Flow::new(18).await;
    let applier = flow.start();
    flow.marker().await;
    written_down(&mut flow).await;
    let answer = rewind(&flow).await;
    let Answer::Done(report) = answer else {
        panic!("{answer:?}");
    };
    assert_eq!((report.transactions, report.probes), (0, 0));
    assert_ne!(report, Report::default(), "genesis and marker were there");
    applier.stop().await;
}
