//! The source's transactions in commit order, read by PostgreSQL's own `test_decoding`.

use anyhow::{Context, Result, bail};
use futures_util::TryStreamExt;
use tokio_postgres::Client;

/// One committed transaction.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TruthTransaction {
    /// End LSN of the commit record.
    pub end_lsn: u64,
    /// Transaction id.
    pub xid: u32,
    /// Ids inserted into `tx`.
    pub ids: Vec<i64>,
    /// Keys of `la` to which an id was appended, with the id.
    pub appended: Vec<(i32, i64)>,
    /// Rows inserted into `keyless`.
    pub keyless: u64,
    /// Money in the rows inserted into `bank`; transfers do not change the sum.
    pub deposited: i64,
    /// Changes of tables of the workload.
    pub changes: u64,
}

/// Everything committed since the slot was made.
#[derive(Debug, Clone, Default)]
pub struct Truth {
    /// In commit order.
    pub transactions: Vec<TruthTransaction>,
}

impl Truth {
    /// Makes the reader's slot; call before the workload starts.
    pub async fn create_slot(client: &Client, slot: &str) -> Result<()> {
        client
            .execute(
                "SELECT pg_create_logical_replication_slot($1, 'test_decoding')",
                &[&slot],
            )
            .await?;
        Ok(())
    }

    /// Reads everything, leaving the slot where it is.
    pub async fn read(client: &Client, slot: &str) -> Result<Truth> {
        let rows = client
            .query_raw(
                "SELECT lsn::text, data FROM pg_logical_slot_peek_changes($1, NULL, NULL, 'include-xids', '1')",
                [slot],
            )
            .await?;
        tokio::pin!(rows);
        let mut reader = Reader::default();
        while let Some(row) = rows.try_next().await? {
            reader.line(row.get(0), row.get(1))?;
        }
        Ok(Truth {
            transactions: reader.done,
        })
    }

    /// How many transactions end at or below `end_lsn`.
    pub fn prefix(&self, end_lsn: u64) -> usize {
        self.transactions
            .partition_point(|transaction| transaction.end_lsn <= end_lsn)
    }
}

#[derive(Default)]
struct Reader {
    open: Option<TruthTransaction>,
    done: Vec<TruthTransaction>,
}

impl Reader {
    fn line(&mut self, lsn: &str, data: &str) -> Result<()> {
        if let Some(xid) = data.strip_prefix("BEGIN ") {
            self.open = Some(TruthTransaction {
                xid: xid.trim().parse()?,
                ..TruthTransaction::default()
            });
            return Ok(());
        }
        if data.starts_with("COMMIT ") {
            let mut done = self.open.take().context("COMMIT without BEGIN")?;
            done.end_lsn = lsn_number(lsn)?;
            self.done.push(done);
            return Ok(());
        }
        let open = self
            .open
            .as_mut()
            .context("a change outside of a transaction")?;
        change(open, data)
    }
}

fn change(open: &mut TruthTransaction, data: &str) -> Result<()> {
    open.changes += 1;
    if let Some(rest) = data.strip_prefix("table public.tx: INSERT: ") {
        open.ids.push(column(rest, "id[bigint]:")?.parse()?);
    } else if let Some(rest) = data.strip_prefix("table public.la: UPDATE: ") {
        let key: i32 = column(rest, "k[integer]:")?.parse()?;
        match last_element(rest) {
            Some(id) => open.appended.push((key, id)),
            None => bail!("an update of la without a list: the list must not be toasted"),
        }
    } else if data.starts_with("table public.keyless: INSERT: ") {
        open.keyless += 1;
    } else if let Some(rest) = data.strip_prefix("table public.bank: INSERT: ") {
        open.deposited += column(rest, "balance[bigint]:")?.parse::<i64>()?;
    }
    Ok(())
}

fn column<'a>(text: &'a str, name: &str) -> Result<&'a str> {
    let from = text
        .find(name)
        .with_context(|| format!("no column {name} in {text:?}"))?
        + name.len();
    Ok(text[from..].split(' ').next().unwrap_or_default())
}

/// The last element of `v[bigint[]]:'{1,2,3}'`.
fn last_element(text: &str) -> Option<i64> {
    let from = text.find("v[bigint[]]:'{")? + "v[bigint[]]:'{".len();
    let list = text[from..].split('}').next()?;
    list.rsplit(',').next()?.parse().ok()
}

fn lsn_number(text: &str) -> Result<u64> {
    let (high, low) = text.split_once('/').context("not an LSN")?;
    Ok(u64::from_str_radix(high, 16)? << 32 | u64::from_str_radix(low, 16)?)
}
