//! Statements under way: sent without waiting, answered in order.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;

use futures_util::TryStreamExt;
use tokio_postgres::{Client, Error, Statement};

use super::{ApplyError, ApplyErrorKind, Place, Statements};
use crate::plan::{Parameter, Step};

/// Statements whose answers are waited for at once.
const IN_FLIGHT: usize = 256;
/// Bytes of values sent but not answered; they are in buffers of the connection.
const IN_FLIGHT_BYTES: usize = 4 << 20;

type Counting<'c> = Pin<Box<dyn Future<Output = Result<u64, Error>> + Send + 'c>>;

/// The statements of one target transaction, in the order in which they were sent.
pub(super) struct Pipeline<'c> {
    client: &'c Client,
    flights: VecDeque<Flight<'c>>,
    bytes: usize,
    sent: u64,
    failed: bool,
}

struct Flight<'c> {
    answer: Answer<'c>,
    claim: Claim,
}

enum Answer<'c> {
    Awaited(Counting<'c>),
    Here(Result<u64, Error>),
}

/// What a statement has to have done.
struct Claim {
    rows: Option<u64>,
    first: Place,
    changes: u64,
    verb: &'static str,
    schema: String,
    table: String,
    bytes: usize,
}

impl<'c> Pipeline<'c> {
    pub(super) fn new(client: &'c Client) -> Self {
        Self {
            client,
            flights: VecDeque::new(),
            bytes: 0,
            sent: 0,
            failed: false,
        }
    }

    /// Statements sent so far.
    pub(super) fn sent(&self) -> u64 {
        self.sent
    }

    /// Whether a statement was answered with an error or a wrong count; every later answer is an
    /// echo of it.
    pub(super) fn has_failed(&self) -> bool {
        self.failed
    }

    /// Sends a statement behind the others; waits only while too much is under way.
    pub(super) async fn send(
        &mut self,
        statements: &mut Statements,
        step: Step<'static>,
    ) -> Result<(), ApplyError> {
        let bytes = step.bytes();
        while !self.flights.is_empty()
            && (self.flights.len() >= IN_FLIGHT || self.bytes + bytes > IN_FLIGHT_BYTES)
        {
            self.settle_oldest().await?;
        }
        let claim = Claim::of(&step);
        let statement = self.prepare(statements, &step, &claim).await?;
        let mut future: Counting<'c> = Box::pin(run(self.client, statement, step));
        // The first poll sends; without it the statement would wait for its predecessors' answers.
        let first = poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await;
        let answer = match first {
            Poll::Ready(result) => Answer::Here(result),
            Poll::Pending => Answer::Awaited(future),
        };
        self.bytes += bytes;
        self.sent += 1;
        self.flights.push_back(Flight { answer, claim });
        Ok(())
    }

    /// Sends a statement with borrowed values after all others were answered, and waits for it: of
    /// a huge row there is never more than the message and the connection's own copies.
    pub(super) async fn run_alone(
        &mut self,
        statements: &mut Statements,
        step: Step<'_>,
    ) -> Result<(), ApplyError> {
        self.drain().await?;
        let claim = Claim::of(&step);
        let statement = self.prepare(statements, &step, &claim).await?;
        self.sent += 1;
        let result = run(self.client, statement, step).await;
        self.judge(&claim, result)
    }

    /// As [`Pipeline::run_alone`] for a statement that must touch one row or none: which of the two.
    pub(super) async fn run_for_one(
        &mut self,
        statements: &mut Statements,
        step: Step<'_>,
    ) -> Result<bool, ApplyError> {
        self.drain().await?;
        let mut claim = Claim::of(&step);
        let statement = self.prepare(statements, &step, &claim).await?;
        self.sent += 1;
        let result = run(self.client, statement, step).await;
        let none = matches!(result, Ok(0));
        if none {
            claim.rows = None;
        }
        self.judge(&claim, result).map(|()| !none)
    }

    /// Waits for something else that is asked on the same connection, and takes what comes for the
    /// statements under way meanwhile.
    ///
    /// The connection holds few pieces of an answer that nobody takes, and reads nothing behind
    /// them: a statement that fails is answered in several pieces, and whoever waited for a later
    /// answer alone would wait for ever.
    pub(super) async fn beside<T>(&mut self, other: impl Future<Output = T>) -> T {
        let mut other = pin!(other);
        poll_fn(|context| {
            for flight in &mut self.flights {
                if let Answer::Awaited(future) = &mut flight.answer {
                    match future.as_mut().poll(context) {
                        Poll::Ready(result) => flight.answer = Answer::Here(result),
                        Poll::Pending => break,
                    }
                }
            }
            other.as_mut().poll(context)
        })
        .await
    }

    /// Waits until every statement was answered with the right count.
    pub(super) async fn drain(&mut self) -> Result<(), ApplyError> {
        while !self.flights.is_empty() {
            self.settle_oldest().await?;
        }
        Ok(())
    }

    async fn settle_oldest(&mut self) -> Result<(), ApplyError> {
        let Some(flight) = self.flights.front_mut() else {
            return Ok(());
        };
        if let Answer::Awaited(future) = &mut flight.answer {
            // Kept in the queue until it is answered: this future may be dropped while waiting.
            flight.answer = Answer::Here(future.await);
        }
        let Some(Flight {
            answer: Answer::Here(result),
            claim,
        }) = self.flights.pop_front()
        else {
            return Ok(());
        };
        self.bytes -= claim.bytes;
        self.judge(&claim, result)
    }

    fn judge(&mut self, claim: &Claim, result: Result<u64, Error>) -> Result<(), ApplyError> {
        let judged = claim.check(result);
        self.failed |= judged.is_err();
        judged
    }

    async fn prepare(
        &mut self,
        statements: &mut Statements,
        step: &Step<'_>,
        claim: &Claim,
    ) -> Result<Option<Statement>, ApplyError> {
        let types: Vec<_> = step.parameters.iter().map(Parameter::sql_type).collect();
        let client = self.client;
        match self.beside(statements.get(client, &step.sql, &types)).await {
            Ok(statement) => Ok(statement),
            Err(error) => {
                // Mostly an echo (25P02) of a statement before it, which is the one to name.
                self.drain().await?;
                Err(claim.named(ApplyError::from_server(&error)))
            }
        }
    }
}

async fn run(client: &Client, statement: Option<Statement>, step: Step<'_>) -> Result<u64, Error> {
    let Step {
        sql, parameters, ..
    } = step;
    if let Some(statement) = statement {
        return client.execute_raw(&statement, parameters).await;
    }
    let typed = parameters.into_iter().map(|parameter| {
        let sql_type = parameter.sql_type();
        (parameter, sql_type)
    });
    let mut rows = pin!(client.query_typed_raw(&sql, typed).await?);
    while rows.try_next().await?.is_some() {}
    Ok(rows.rows_affected().unwrap_or(0))
}

impl Claim {
    fn of(step: &Step<'_>) -> Self {
        Claim {
            rows: step.rows,
            first: step.first,
            changes: step.changes,
            verb: step.verb,
            schema: step.table.schema.clone(),
            table: step.table.name.clone(),
            bytes: step.bytes(),
        }
    }

    /// Every count is compared (A6); a wrong one is an error here, before COMMIT is sent (C31).
    fn check(&self, result: Result<u64, Error>) -> Result<(), ApplyError> {
        let touched = match result {
            Err(error) => return Err(self.named(ApplyError::from_server(&error))),
            Ok(touched) => touched,
        };
        match self.rows {
            Some(must) if touched != must => Err(self.named(self.miscounted(must, touched))),
            _ => Ok(()),
        }
    }

    fn miscounted(&self, must: u64, touched: u64) -> ApplyError {
        let verb = self.verb;
        let message = match (must, touched) {
            (1, 0) if verb == "insert" => "the inserted row was not stored".to_owned(),
            (1, 0) => format!("the row to {verb} is not on the target"),
            (1, touched) => format!("the {verb} of one row touched {touched} rows"),
            _ => format!("the {verb} of {must} rows touched {touched}"),
        };
        let hint = if verb == "insert" {
            "look for triggers or rules on the target's table that keep rows out"
        } else {
            "look for other writers on the target, and for triggers, rules and row-level security \
             on its table"
        };
        ApplyError::new(ApplyErrorKind::Count, message).hint(hint)
    }

    fn named(&self, error: ApplyError) -> ApplyError {
        error
            .on(&self.schema, &self.table)
            .at(self.first, self.changes)
    }
}
