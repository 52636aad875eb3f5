//! Tables that are added, copied anew and taken out while somebody dies behind each step: whoever
//! typed the command, or the applier. What was begun goes on, or is begun again by the same command.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use tokio::task::JoinHandle;
use tokio_postgres::Client;
use trellara_testkit::compare;
use trellara_testkit::daemon::Daemon;
use trellara_testkit::flow::Flow;
use trellara_testkit::handover::Gate;

use crate::restart::until;
use crate::scenario::{run, started, value};

/// With an applier that waits for the sessions of a predecessor, several times.
const WITHIN: Duration = Duration::from_secs(90);

/// Always of the flow; nobody but a test writes into it.
const OTHER: &str = "CREATE TABLE other (id int PRIMARY KEY, v text)";

/// A running flow, and a table that is written to all the time.
struct Stage {
    flow: Flow,
    writer: JoinHandle<Result<()>>,
    stop: tokio::sync::oneshot::Sender<()>,
    commands: usize,
}

impl Stage {
    /// Table `t` is on both sides, and not in the flow yet.
    async fn start(version: u32, name: &str) -> Result<Self> {
        let flow = started(version, name, &[OTHER], "").await?;
        let source = flow.source_admin.clone();
        run(&source, &["INSERT INTO other VALUES (1, 'x')"]).await?;
        flow.caught_up(WITHIN).await?;
        for url in [&source, &flow.target_admin] {
            run(url, &["CREATE TABLE t (id bigserial PRIMARY KEY, v text)"]).await?;
        }
        flow.grant().await?;
        let rows = "INSERT INTO t (v) SELECT repeat('y', g % 50) FROM generate_series(1, 2000) g";
        run(&source, &[rows]).await?;
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let writer = tokio::spawn(write(source, stopped));
        Ok(Self {
            flow,
            writer,
            stop,
            commands: 0,
        })
    }

    /// Begins a command as somebody who owns the publication.
    fn begin(&mut self, arguments: &[&str]) -> Result<Daemon> {
        self.commands += 1;
        let log = format!("command{}", self.commands);
        let owner = ("TRELLARA__SOURCE__URL", self.flow.source_admin.clone());
        self.flow.begin(arguments, &log, &[owner])
    }

    fn add(&mut self) -> Result<Daemon> {
        let lock = ["--lock-timeout", "200ms"];
        self.begin(&[&["table", "add", "public.t"][..], &lock].concat())
    }

    /// A command to its end.
    async fn ends(&mut self, arguments: &[&str]) -> Result<()> {
        let command = self.begin(arguments)?;
        self.ended(command).await
    }

    async fn ended(&self, mut command: Daemon) -> Result<()> {
        let deadline = tokio::time::Instant::now() + WITHIN;
        while command.is_running() && tokio::time::Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let status = command.wait(Duration::ZERO)?;
        ensure!(
            status.success(),
            "{status}: {}\n{}",
            command.log(),
            self.flow.logs()
        );
        Ok(())
    }

    async fn source(&self) -> Result<Client> {
        compare::connect(&self.flow.source_admin).await
    }

    async fn target(&self) -> Result<Client> {
        compare::connect(&self.flow.target_admin).await
    }

    /// Waits until the copy of `t` is in that state.
    async fn is(&self, state: &str) -> Result<()> {
        let sql = "SELECT state FROM trellara.backfill WHERE table_name = 't'";
        let waited = until(&self.flow.target_admin, sql, state, WITHIN).await;
        waited.with_context(|| self.flow.logs())
    }

    /// How often `t` was begun anew, and once more.
    async fn generation(&self) -> Result<u32> {
        let sql = "SELECT generation FROM trellara.backfill WHERE table_name = 't'";
        Ok(value(&self.flow.target_admin, sql).await?.parse()?)
    }

    /// SIGKILL of the applier, and another one.
    fn kill_applier(&mut self) -> Result<()> {
        self.flow.applier.as_mut().context("applier")?.kill()?;
        self.flow.start_applier().map(drop)
    }

    fn signal_relay(&self, signal: Signal) -> Result<()> {
        self.flow.relay.as_ref().context("relay")?.signal(signal)
    }

    /// One more row of `t` has been written and committed.
    async fn written(&self) -> Result<()> {
        let last = value(&self.flow.source_admin, "SELECT max(id) FROM t").await?;
        let sql = format!("SELECT max(id) > {last} FROM t");
        until(&self.flow.source_admin, &sql, "t", WITHIN).await
    }

    /// How often an action was written down.
    async fn recorded(&self, action: &str) -> Result<String> {
        let sql = format!("SELECT count(*) FROM trellara.audit WHERE action = '{action}'");
        value(&self.flow.target_admin, &sql).await
    }

    /// Nobody writes any more, and both sides are equal.
    async fn ends_equal(self) -> Result<()> {
        let _ = self.stop.send(());
        self.writer.await??;
        self.flow.converges(WITHIN).await
    }
}

async fn write(url: String, mut stopped: tokio::sync::oneshot::Receiver<()>) -> Result<()> {
    let client = compare::connect(&url).await?;
    while stopped.try_recv().is_err() {
        let sql = "INSERT INTO public.t (v) VALUES ('during'); \
                   UPDATE public.t SET v = v || '+' WHERE id = (random() * 2000)::int; \
                   DELETE FROM public.t WHERE id = (random() * 2000)::int";
        client.batch_execute(sql).await?;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

/// Waits until a session of that database waits for a lock with a statement like this.
async fn blocked(url: &str, statement: &str) -> Result<()> {
    let sql = format!(
        "SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() \
            AND wait_event_type = 'Lock' AND query LIKE '{statement}%'"
    );
    until(url, &sql, "t", WITHIN).await
}

/// Nobody executes such a statement any more, whatever became of it.
async fn over(url: &str, statement: &str) -> Result<()> {
    let sql = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() \
            AND state = 'active' AND query LIKE '{statement}%'"
    );
    until(url, &sql, "0", WITHIN).await
}

/// What every command begins with.
const WRITES: &str = "%INSERT INTO trellara.backfill ";
const ROW: &str = "BEGIN; SELECT FROM trellara.backfill WHERE table_name = 't' FOR UPDATE";
const AUDIT: &str = "BEGIN; LOCK TABLE trellara.audit IN EXCLUSIVE MODE";

/// Each run of the command goes on where the one before was killed.
async fn add_is_killed_at_each_step(version: u32, name: &str) -> Result<()> {
    let mut stage = Stage::start(version, name).await?;
    let (source_url, target_url) = (
        stage.flow.source_admin.clone(),
        stage.flow.target_admin.clone(),
    );
    // Announced, and the applier has not noticed it.
    let applier = stage.flow.applier.as_ref().context("applier")?.pid();
    let applier = nix::unistd::Pid::from_raw(i32::try_from(applier)?);
    nix::sys::signal::kill(applier, Signal::SIGSTOP)?;
    let mut add = stage.add()?;
    add.logged("waiting for the applier", WITHIN).await?;
    add.kill()?;
    nix::sys::signal::kill(applier, Signal::SIGCONT)?;
    // Noticed, and not published.
    let holder = stage.source().await?;
    holder
        .batch_execute("BEGIN; INSERT INTO public.t (v) VALUES ('held')")
        .await?;
    let mut add = stage.add()?;
    add.logged("locked by", WITHIN).await?;
    add.kill()?;
    holder.batch_execute("COMMIT").await?;
    over(&source_url, "BEGIN; SET LOCAL lock_timeout").await?;
    // Published, while a transaction is open that may have written before.
    holder
        .batch_execute("BEGIN; UPDATE public.other SET v = 'y'")
        .await?;
    let mut add = stage.add()?;
    add.logged("waiting for transactions", WITHIN).await?;
    add.kill()?;
    // Ordered by a session whose client is dead: nothing of it stays.
    let mut add = stage.add()?;
    add.logged("waiting for transactions", WITHIN).await?;
    let gate = Gate::shut(&target_url).await?;
    let keeper = stage.target().await?;
    keeper.batch_execute(ROW).await?;
    holder.batch_execute("COMMIT").await?;
    blocked(&target_url, "UPDATE trellara.backfill").await?;
    add.kill()?;
    keeper.batch_execute("COMMIT").await?;
    over(&target_url, "UPDATE trellara.backfill").await?;
    // A part of it is on its way.
    let mut add = stage.add()?;
    ensure!(gate.waited_at(WITHIN).await?, "{}", add.log());
    add.kill()?;
    gate.open().await?;
    stage
        .ends(&["table", "add", "public.t"])
        .await
        .context("the last run")?;
    let sql = "SELECT state IN ('loaded', 'done') FROM trellara.backfill WHERE table_name = 't'";
    ensure!(value(&target_url, sql).await? == "t");
    stage.ends_equal().await
}

#[tokio::test]
async fn an_addition_goes_on_wherever_its_command_was_killed_on_15() -> Result<()> {
    add_is_killed_at_each_step(15, "addkill15").await
}

#[tokio::test]
async fn an_addition_goes_on_wherever_its_command_was_killed_on_18() -> Result<()> {
    add_is_killed_at_each_step(18, "addkill18").await
}

/// An order and its record in the audit are one transaction: a command that was killed between them
/// has ordered nothing, and the same command does it.
#[tokio::test]
async fn commands_killed_in_front_of_their_record_have_ordered_nothing() -> Result<()> {
    let mut stage = Stage::start(18, "norecord").await?;
    let target_url = stage.flow.target_admin.clone();
    let insert = "INSERT INTO trellara.audit";
    let stands = "SELECT state || ' ' || generation FROM trellara.backfill WHERE table_name = 't'";
    for (words, before, action, state) in [
        (
            &["table", "add", "public.t"][..],
            "announced 1",
            "table added",
            "done",
        ),
        (
            &["table", "recopy", "public.t", "--yes"],
            "done 1",
            "table copied anew",
            "done",
        ),
        (
            &["table", "remove", "public.t", "--yes"],
            "done 2",
            "table removed",
            "removed",
        ),
    ] {
        let keeper = stage.target().await?;
        keeper.batch_execute(AUDIT).await?;
        let mut command = stage.begin(words)?;
        blocked(&target_url, insert).await?;
        command.kill()?;
        keeper.batch_execute("ROLLBACK").await?;
        over(&target_url, insert).await?;
        let stands = value(&target_url, stands).await?;
        ensure!(stands == before, "{words:?}: {stands}");
        ensure!(stage.recorded(action).await? == "0", "{words:?}");
        stage.ends(words).await?;
        let reached = stage.is(state).await;
        reached.with_context(|| format!("{words:?}"))?;
        ensure!(stage.recorded(action).await? == "1", "{words:?}");
    }
    stage
        .ends(&["table", "add", "public.t", "--truncate"])
        .await?;
    stage.ends_equal().await
}

/// Recopying again is always right: the generation goes up.
#[tokio::test]
async fn a_recopy_that_was_killed_is_done_or_begun_again() -> Result<()> {
    for (version, name) in [(15, "recopykill15"), (18, "recopykill18")] {
        let mut stage = Stage::start(version, name).await?;
        let target_url = stage.flow.target_admin.clone();
        stage.ends(&["table", "add", "public.t"]).await?;
        let recopy = ["table", "recopy", "public.t", "--yes"];
        let keeper = stage.target().await?;
        keeper.batch_execute(ROW).await?;
        let mut killed = stage.begin(&recopy)?;
        blocked(&target_url, WRITES).await?;
        killed.kill()?;
        keeper.batch_execute("COMMIT").await?;
        over(&target_url, WRITES).await?;
        // Its session had nobody who would have ended the transaction.
        ensure!(stage.generation().await? == 1);
        ensure!(stage.recorded("table copied anew").await? == "0");
        let gate = Gate::shut(&target_url).await?;
        let mut killed = stage.begin(&recopy)?;
        ensure!(gate.waited_at(WITHIN).await?, "{}", killed.log());
        killed.kill()?;
        // In the middle of one another one is asked for; it may have to wait for the part.
        let again = stage.begin(&recopy)?;
        let sql = "SELECT generation = 3 OR EXISTS (SELECT FROM pg_stat_activity \
                     WHERE wait_event_type = 'Lock' AND query LIKE '%INTO trellara.backfill %') \
                    FROM trellara.backfill WHERE table_name = 't'";
        until(&target_url, sql, "t", WITHIN).await?;
        gate.open().await?;
        stage.ended(again).await?;
        ensure!(stage.generation().await? == 3);
        ensure!(stage.recorded("table copied anew").await? == "2");
        stage.ends_equal().await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_removal_goes_on_wherever_its_command_was_killed() -> Result<()> {
    for (version, name) in [(15, "removekill15"), (18, "removekill18")] {
        let mut stage = Stage::start(version, name).await?;
        let (source_url, target_url) = (
            stage.flow.source_admin.clone(),
            stage.flow.target_admin.clone(),
        );
        stage.ends(&["table", "add", "public.t"]).await?;
        let remove = ["table", "remove", "public.t", "--yes"];
        // By a session whose client is dead: nothing of it stays.
        let keeper = stage.target().await?;
        keeper.batch_execute(ROW).await?;
        let mut killed = stage.begin(&remove)?;
        blocked(&target_url, WRITES).await?;
        killed.kill()?;
        keeper.batch_execute("COMMIT").await?;
        over(&target_url, WRITES).await?;
        ensure!(stage.recorded("table removed").await? == "0");
        stage.is("done").await?;
        // In front of the publication, which waits for whoever vacuums the table.
        let holder = stage.source().await?;
        holder
            .batch_execute("BEGIN; LOCK TABLE public.t IN SHARE UPDATE EXCLUSIVE MODE")
            .await?;
        let mut killed = stage.begin(&remove)?;
        blocked(&source_url, "ALTER PUBLICATION").await?;
        killed.kill()?;
        // The publication still has it; who took it out is known.
        stage.is("removed").await?;
        ensure!(stage.recorded("table removed").await? == "1");
        stage.written().await?;
        run(
            &source_url,
            &["SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                WHERE datname = current_database() AND query LIKE 'ALTER PUBLICATION%'"],
        )
        .await?;
        holder.batch_execute("COMMIT").await?;
        stage.written().await?;
        stage.ends(&remove).await?;
        let published = "SELECT count(*) FROM pg_publication_tables WHERE tablename = 't'";
        ensure!(value(&source_url, published).await? == "0");
        stage.is("removed").await?;
        ensure!(stage.recorded("table removed").await? == "1");
        run(&source_url, &["UPDATE other SET v = 'after'"]).await?;
        stage.flow.caught_up(WITHIN).await?;
        ensure!(value(&target_url, "SELECT v FROM other").await? == "after");
        // It comes back whole.
        let back = ["table", "add", "public.t", "--truncate"];
        stage.ends(&back).await?;
        stage.ends_equal().await?;
    }
    Ok(())
}

/// The one who applies dies behind each state that the copy of a later table goes through. The
/// command that asked for it notices nothing.
async fn applier_dies_behind_each_state(
    stage: &mut Stage,
    words: &[&str],
    joins: bool,
) -> Result<()> {
    let source = stage.source().await?;
    let target = stage.target().await?;
    let gate = Gate::shut(&stage.flow.target_admin).await?;
    let command = if joins {
        // Announced and noticed, not published.
        source
            .batch_execute("BEGIN; INSERT INTO public.t (v) VALUES ('held')")
            .await?;
        let mut add = stage.add()?;
        add.logged("locked by", WITHIN).await?;
        stage.kill_applier()?;
        let other = stage.source().await?;
        other
            .batch_execute("BEGIN; UPDATE public.other SET v = 'open'")
            .await?;
        source.batch_execute("COMMIT").await?;
        // Published, not ordered.
        add.logged("waiting for transactions", WITHIN).await?;
        stage.kill_applier()?;
        stage.signal_relay(Signal::SIGSTOP)?;
        stage.written().await?;
        other.batch_execute("COMMIT").await?;
        add
    } else {
        stage.signal_relay(Signal::SIGSTOP)?;
        stage.written().await?;
        run(
            &stage.flow.source_admin,
            &["UPDATE other SET v = v || 'again'"],
        )
        .await?;
        stage.begin(words)?
    };
    stage.is("wanted").await?;
    stage.kill_applier()?;
    stage.signal_relay(Signal::SIGCONT)?;
    ensure!(gate.waited_at(WITHIN).await?, "{}", stage.flow.logs());
    stage.is("copying").await?;
    stage.kill_applier()?;
    // All rows are in, and the lane stands in front of a transaction that came before the copy.
    target
        .batch_execute("BEGIN; SELECT FROM public.other FOR UPDATE")
        .await?;
    gate.open().await?;
    stage.is("loaded").await?;
    blocked(&stage.flow.target_admin, "%other").await?;
    stage.kill_applier()?;
    target.batch_execute("COMMIT").await?;
    stage.is("done").await?;
    stage.ended(command).await
}

async fn applier_dies(version: u32, name: &str) -> Result<()> {
    let mut stage = Stage::start(version, name).await?;
    applier_dies_behind_each_state(&mut stage, &[], true).await?;
    stage.kill_applier()?;
    let recopy = ["table", "recopy", "public.t", "--yes"];
    applier_dies_behind_each_state(&mut stage, &recopy, false).await?;
    stage
        .ends(&["table", "remove", "public.t", "--yes"])
        .await?;
    stage.kill_applier()?;
    stage.written().await?;
    stage.flow.caught_up(WITHIN).await?;
    stage.is("removed").await?;
    stage
        .ends(&["table", "add", "public.t", "--truncate"])
        .await?;
    stage.ends_equal().await
}

#[tokio::test]
async fn an_applier_that_dies_behind_each_state_of_a_later_copy_goes_on_on_15() -> Result<()> {
    applier_dies(15, "statekill15").await
}

#[tokio::test]
async fn an_applier_that_dies_behind_each_state_of_a_later_copy_goes_on_on_18() -> Result<()> {
    applier_dies(18, "statekill18").await
}
