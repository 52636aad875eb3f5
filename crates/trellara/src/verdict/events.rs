//! A run as it goes on, one JSON value a line: `run`, `step`, `table`, `difference`, `verdict`.

use serde::Serialize;
use serde_json::Value;
use trellara_verify::Progress;
use trellara_verify::report::TableReport;

use super::document::{Document, TableDocument, table_document};
use crate::output::{Format, Output};

/// Writes the events of one run.
pub(crate) struct Events {
    output: Output,
    run: String,
    values: bool,
}

#[derive(Serialize)]
struct Event<'a, T> {
    event: &'static str,
    run: &'a str,
    #[serde(flatten)]
    body: T,
}

/// Which table an event is about.
#[derive(Serialize)]
struct Of<'a, T> {
    table: &'a str,
    #[serde(flatten)]
    body: T,
}

impl Events {
    pub(crate) fn new(output: Output, run: &str, values: bool) -> Self {
        Self {
            output,
            run: run.to_owned(),
            values,
        }
    }

    fn write(&self, event: &'static str, body: impl Serialize) {
        let run = &self.run;
        self.output.event(&Event { event, run, body });
    }

    /// The run began, with what is known by then.
    pub(crate) fn run(&self, body: &impl Serialize) {
        self.write("run", body);
    }

    /// Something is being waited for or begun.
    pub(crate) fn step(&self, step: &str) {
        self.write("step", serde_json::json!({"step": step}));
    }

    /// Tables as they are begun and done.
    pub(crate) fn show(&self, progress: &Progress) {
        if self.output.format != Format::Ndjson {
            return;
        }
        match progress {
            Progress::Planned { .. } => self.step("comparing"),
            Progress::Finished { report } => self.table(report),
            Progress::Paused { .. } => self.step("waiting_for_target"),
            Progress::Started { .. } | Progress::Compared { .. } => {}
        }
    }

    fn table(&self, report: &TableReport) {
        let document = table_document(report, self.values);
        let TableDocument { id, .. } = &document;
        for body in &document.differences {
            self.write("difference", Of { table: id, body });
        }
        self.write("table", without(&document, &["differences"]));
    }

    /// The end of it: what the document says beside its tables, which were told.
    pub(crate) fn verdict(&self, document: &Document) {
        self.write("verdict", without(document, &["tables", "id"]));
    }
}

fn without(value: &impl Serialize, fields: &[&str]) -> Value {
    let mut value = serde_json::to_value(value).unwrap_or_default();
    if let Some(object) = value.as_object_mut() {
        for field in fields {
            object.remove(*field);
        }
    }
    value
}
