//! What the daemons that can be reached say.

use trellara_envelope::HaltCode;

use crate::config::{Config, LISTEN_APPLIER, LISTEN_RELAY, Listen};
use crate::exit::{Exit, Failure};
use crate::http;
use crate::report::{DaemonReport, ProcessReport};

/// The reports of this flow from the usual addresses, or the one in the file; a daemon that is not
/// there says nothing.
pub(crate) async fn reachable(config: &Config) -> Vec<DaemonReport> {
    let addresses = match config.process.listen {
        Listen::Off => Vec::new(),
        Listen::Default => vec![LISTEN_RELAY.to_owned(), LISTEN_APPLIER.to_owned()],
        Listen::Address(address) => vec![address.to_string()],
    };
    let mut reports: Vec<DaemonReport> = Vec::new();
    for address in addresses {
        let Ok(body) = http::get(&address, "/status").await else {
            continue;
        };
        let Ok(process) = serde_json::from_str::<ProcessReport>(&body) else {
            continue;
        };
        let ours = process
            .daemons
            .into_iter()
            .filter(|daemon| daemon.flow == config.flow.as_str());
        reports.extend(ours);
    }
    reports
}

/// The first halt among them as this command's end: its code, at once.
pub(crate) fn first_halt(reports: &[DaemonReport]) -> Option<Failure> {
    let (report, halt) = reports
        .iter()
        .find_map(|report| Some((report, report.halt.as_ref()?)))?;
    let code = HaltCode::ALL.iter().find(|code| code.as_str() == halt.code);
    let exit = code.map_or(Exit::Unexpected, |code| Exit::Halted(*code));
    let reason = format!("the {} halted: {}: {}", report.role, halt.code, halt.reason);
    Some(Failure::new(exit, reason, halt.hint.clone()))
}
