//! `/metrics`, `/status`, `/livez`, `/readyz`: read-only, all on one port.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::get;

use super::Health;
use crate::telemetry::{Metrics, States};

#[derive(Clone)]
struct Endpoint {
    health: Arc<Health>,
    metrics: Option<Metrics>,
    states: Arc<Mutex<States>>,
}

/// Serves until the process ends; where, unless it cannot. A taken port is named and never stops a
/// daemon: moving transactions matters more than being watched.
pub(super) async fn start(address: SocketAddr, health: Arc<Health>) -> Option<SocketAddr> {
    let endpoint = Endpoint {
        health,
        metrics: Metrics::start(),
        states: Arc::default(),
    };
    let listener = match tokio::net::TcpListener::bind(address).await {
        Ok(listener) => listener,
        Err(error) => {
            tracing::warn!(%address, %error, "no metrics and no status: the address cannot be used; see ops.listen");
            return None;
        }
    };
    // With port 0 the system chooses one.
    let address = listener.local_addr().unwrap_or(address);
    tracing::info!(%address, "serving /metrics, /status, /livez and /readyz");
    let router = Router::new()
        .route("/metrics", get(metrics))
        .route("/status", get(status))
        .route("/livez", get(async || "alive\n"))
        .route("/readyz", get(ready))
        .with_state(endpoint);
    tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, router).await {
            tracing::warn!(%error, "the endpoint ended");
        }
    });
    Some(address)
}

async fn metrics(State(endpoint): State<Endpoint>) -> Response {
    let Some(metrics) = &endpoint.metrics else {
        return (
            StatusCode::SERVICE_UNAVAILABLE,
            "another recorder is installed\n",
        )
            .into_response();
    };
    let mut states = endpoint
        .states
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    let text = metrics.render(&endpoint.health.reports(), &mut states);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response()
}

async fn status(State(endpoint): State<Endpoint>) -> Response {
    Json(endpoint.health.process()).into_response()
}

/// What a command that is no daemon serves: a text that it sets now and then.
#[derive(Clone, Default)]
pub(crate) struct Text(Arc<Mutex<String>>);

impl Text {
    /// Changes the text.
    pub(crate) fn set(&self, change: impl FnOnce(&str) -> String) {
        let mut text = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *text = change(&text);
    }

    /// Serves it at `/metrics`, and `/livez`, until the process ends; where.
    ///
    /// # Errors
    /// The address cannot be used. Who named it for this run wants to know before it begins.
    pub(crate) async fn serve(&self, address: SocketAddr) -> std::io::Result<SocketAddr> {
        let listener = tokio::net::TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let router = Router::new()
            .route("/metrics", get(text))
            .route("/livez", get(async || "alive\n"))
            .with_state(self.clone());
        tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, router).await {
                tracing::warn!(%error, "the endpoint ended");
            }
        });
        Ok(address)
    }
}

async fn text(State(Text(text)): State<Text>) -> Response {
    let text = text.lock().unwrap_or_else(PoisonError::into_inner).clone();
    if text.is_empty() {
        return (StatusCode::SERVICE_UNAVAILABLE, "nothing is known yet\n").into_response();
    }
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response()
}

/// 503 with the list of what is wrong. What stands still because somebody wants it is named, and
/// is no reason for 503: a pause must neither hold up the roll-out of a new version nor have anybody
/// called at night.
async fn ready(State(endpoint): State<Endpoint>) -> Response {
    let reports = endpoint.health.reports();
    let failing: Vec<_> = reports.iter().filter(|report| !report.ready).collect();
    let mut body = serde_json::json!({"ready": failing.is_empty(), "failing": failing});
    // A lane that waits for its copy does its job too, but nobody should take its target for whole.
    for state in ["paused", "copying", "converging"] {
        let in_state: Vec<_> = (reports.iter())
            .filter(|report| report.state == state)
            .collect();
        if !in_state.is_empty() {
            body[state] = serde_json::json!(in_state);
        }
    }
    let code = if failing.is_empty() {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (code, Json(body)).into_response()
}
