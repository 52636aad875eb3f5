//! Sessions that read: in a snapshot somebody exported, or as things are now.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::StreamExt;
use tokio_postgres::{SimpleQueryMessage, SimpleQueryRow, SimpleQueryStream};
use trellara_postgres::{ConnectOptions, Session, fault, quote, sqlstate::ErrorClass};

use crate::compare::CompareOptions;
use crate::error::{Failure, Side, VerifyError};
use crate::frozen::Frozen;

/// Waiting for a lock means that somebody waits behind us; better no result for one table.
const LOCK_TIMEOUT: &str = "2s";

/// Releases what a statement locked; the snapshot stays.
const BACK: &str = "ROLLBACK TO trellara";

/// A row as the server prints it.
pub(crate) type TextRow = Vec<Option<String>>;

/// One session. All text, all through the simple protocol: what the types' own output functions
/// print is what is compared.
pub(crate) struct Reader {
    session: Session,
    side: Side,
    /// Inside of a transaction, which a refused statement spoils until it is rolled back.
    frozen: bool,
    /// The last statement was not seen to its end. It may be refused when nobody listens any more,
    /// so not to have heard of an error is not enough.
    unfinished: AtomicBool,
}

impl Drop for Reader {
    /// A statement that nobody waits for any more must not go on reading a large table.
    fn drop(&mut self) {
        self.session.abandon();
    }
}

impl Reader {
    /// A session that sees things as they are at each statement.
    pub(crate) async fn now(
        side: Side,
        connect: &ConnectOptions,
        options: &CompareOptions,
    ) -> Result<Self, VerifyError> {
        let timeout = options.statement_timeout.unwrap_or_default().as_millis();
        let connect = connect
            .clone()
            .with_application_name(&format!("trellara-verify/{}", options.run))
            .with_parameter("row_security", "off")
            .with_parameter("jit", "off")
            .with_parameter("xmloption", "content")
            .with_parameter("lc_numeric", "C")
            .with_parameter("lock_timeout", LOCK_TIMEOUT)
            .with_parameter("statement_timeout", &timeout.to_string());
        let session = Box::pin(Session::connect(&connect))
            .await
            .map_err(|error| VerifyError::connect(side, &error))?;
        // Ends our statement when we are gone. Some platforms cannot; then it runs to its end.
        let check = "SET client_connection_check_interval = '2s'";
        let _ = session.client.batch_execute(check).await;
        Ok(Self {
            session,
            side,
            frozen: false,
            unfinished: AtomicBool::new(false),
        })
    }

    /// A session inside of the snapshot.
    pub(crate) async fn open(
        side: Side,
        frozen: &Frozen,
        options: &CompareOptions,
    ) -> Result<Self, VerifyError> {
        let mut reader = Self::now(side, &frozen.connect, options).await?;
        let begin = format!(
            "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET TRANSACTION SNAPSHOT {}; \
             SAVEPOINT trellara",
            quote::literal(&frozen.snapshot)
        );
        let begun = reader.session.client.batch_execute(&begin).await;
        begun.map_err(|error| match reader.failure(&error) {
            Failure::Refused { fault, .. } => VerifyError::unusable(
                side,
                format!("the snapshot of the {side} cannot be used: {fault}"),
                "whoever exported it must keep its transaction open, in the same database; run it again",
            ),
            Failure::Run(error) => error,
            Failure::NotComparable { reason, hint } => VerifyError::incomparable(reason, hint),
        })?;
        reader.frozen = true;
        Ok(reader)
    }

    /// The session, for statements of another kind than those that read rows.
    pub(crate) fn session(&self) -> &Session {
        &self.session
    }

    /// Which side it reads.
    pub(crate) fn side(&self) -> Side {
        self.side
    }

    /// Major version of the server.
    pub(crate) fn major(&self) -> u32 {
        self.session.server_version().major()
    }

    /// The encoding that the database keeps its text in.
    pub(crate) fn encoding(&self) -> &str {
        self.session
            .parameter("server_encoding")
            .unwrap_or_default()
    }

    /// Every row of a result that is known to be small.
    pub(crate) async fn rows(&self, sql: &str) -> Result<Vec<TextRow>, Failure> {
        let mut rows = self.stream(sql).await?;
        let mut all = Vec::new();
        while let Some(row) = rows.next().await? {
            let cells = (0..row.len()).map(|i| Ok(rows.cell(&row, i)?.map(str::to_owned)));
            all.push(cells.collect::<Result<TextRow, Failure>>()?);
        }
        Ok(all)
    }

    /// The rows of a result one after the other; the server waits while nobody takes them.
    ///
    /// The locks that the statement takes go with it: kept to the end of the transaction, they
    /// would make an ALTER wait for the whole run, and everybody else behind that. The server
    /// releases them by itself, whether the statement succeeds or not and whoever still listens.
    pub(crate) async fn stream(&self, sql: &str) -> Result<Rows<'_>, Failure> {
        let refused = self.unfinished.swap(true, Ordering::Relaxed);
        let stream = if self.frozen {
            if refused {
                self.back().await?;
            }
            let released = format!("{sql}; {BACK}");
            self.session.client.simple_query_raw(&released).await
        } else {
            self.session.client.simple_query_raw(sql).await
        };
        let stream = Box::pin(stream.map_err(|error| self.failure(&error))?);
        Ok(Rows {
            reader: self,
            stream,
        })
    }

    /// Hands on what a copy sends, piece by piece; the server waits while nobody takes them.
    pub(crate) async fn copy(
        &self,
        sql: &str,
        mut each: impl FnMut(&[u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        if self.unfinished.swap(true, Ordering::Relaxed) {
            self.back().await?;
        }
        let stream = self.session.client.copy_out(sql).await;
        let mut stream = Box::pin(stream.map_err(|error| self.failure(&error))?);
        while let Some(bytes) = stream.next().await {
            each(&bytes.map_err(|error| self.failure(&error))?)?;
        }
        self.back().await?;
        self.unfinished.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Releases what was locked, and ends an error.
    async fn back(&self) -> Result<(), Failure> {
        if !self.frozen {
            return Ok(());
        }
        let back = self.session.client.batch_execute(BACK).await;
        back.map_err(|error| self.failure(&error))
    }

    /// What an error means for the run. An error of a session that is gone is about the run,
    /// whatever it says.
    fn failure(&self, error: &tokio_postgres::Error) -> Failure {
        let fault = fault(error);
        let answered = !fault.sqlstate.is_empty();
        let fatal = answered && matches!(fault.severity.as_str(), "FATAL" | "PANIC");
        let lost = !answered && fault.class == ErrorClass::Passing;
        if fatal || lost || self.session.is_closed() {
            return VerifyError::server(self.side, &fault).into();
        }
        Failure::Refused {
            side: self.side,
            fault: Box::new(fault),
        }
    }
}

/// A result that is being read.
pub(crate) struct Rows<'a> {
    reader: &'a Reader,
    stream: Pin<Box<SimpleQueryStream>>,
}

impl Rows<'_> {
    /// The next row; `None` at the end.
    pub(crate) async fn next(&mut self) -> Result<Option<SimpleQueryRow>, Failure> {
        loop {
            match self.stream.next().await {
                None => {
                    self.reader.unfinished.store(false, Ordering::Relaxed);
                    return Ok(None);
                }
                Some(Ok(SimpleQueryMessage::Row(row))) => return Ok(Some(row)),
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(self.reader.failure(&error)),
            }
        }
    }

    /// A cell. It fails for text that is no UTF-8, which only an SQL_ASCII database can hold.
    pub(crate) fn cell<'r>(
        &self,
        row: &'r SimpleQueryRow,
        index: usize,
    ) -> Result<Option<&'r str>, Failure> {
        row.try_get(index).map_err(|_| Failure::NotComparable {
            reason: format!("the {} holds text that is not UTF-8", self.reader.side),
            hint: "give the database an encoding; SQL_ASCII says nothing about its bytes".into(),
        })
    }

    /// A cell that is a number of 64 bits.
    pub(crate) fn number(&self, row: &SimpleQueryRow, index: usize) -> Result<i64, Failure> {
        let parsed = self.cell(row, index)?.and_then(|text| text.parse().ok());
        parsed.ok_or_else(|| VerifyError::bug("a digest is no number").into())
    }
}
