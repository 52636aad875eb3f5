//! Connecting, being refused, and what the connection says while it lives.

use std::path::{Path, PathBuf};
use std::time::Duration;

use trellara_envelope::StreamSequence;
use trellara_jetstream::publish::{Outcome, Publisher};
use trellara_jetstream::read::Reader;
use trellara_jetstream::topology::{self, StreamSpec};
use trellara_jetstream::{
    Broker, BrokerError, BrokerErrorKind, BrokerEvent, Credentials, NatsOptions, ServerVersion,
};
use trellara_local::{NatsOptions as ServerOptions, NatsServer};

use crate::rig::{self, message, payload, within};

async fn refused(options: &NatsOptions) -> BrokerError {
    within(Broker::connect(options))
        .await
        .expect_err("it must be refused")
}

fn url(url: String) -> NatsOptions {
    NatsOptions {
        url,
        ..NatsOptions::default()
    }
}

#[tokio::test]
async fn nobody_there_passes_and_a_wrong_password_does_not() {
    let auth = Some(("me".to_owned(), "p@ss/w:rd".to_owned()));
    let server = NatsServer::start(&ServerOptions {
        auth,
        ..ServerOptions::default()
    });
    let server = server.expect("a nats-server");
    let at = |user_info: &str| url(format!("nats://{user_info}127.0.0.1:{}", server.port()));
    for wrong in ["", "me:wrong@", "token@"] {
        let error = refused(&at(wrong)).await;
        assert!(
            matches!(error.kind(), BrokerErrorKind::Permission { .. }),
            "{wrong}: {error}"
        );
        assert!(!error.to_string().contains("wrong"), "{error}");
    }
    let right = Broker::connect(&at("me:p%40ss%2Fw%3Ard@"))
        .await
        .expect("a connection");
    assert!(right.is_connected());
    let mut options = at("");
    options.credentials = Credentials::UserPassword {
        user: "me".to_owned(),
        password: "p@ss/w:rd".to_owned().into(),
    };
    Broker::connect(&options).await.expect("a connection");
    drop(server);
    let free = trellara_local::free_port().expect("a port");
    let error = refused(&url(format!("nats://127.0.0.1:{free}"))).await;
    assert!(error.is_passing(), "{error}");
}

#[tokio::test]
async fn an_nkey_seed_file_and_a_token_are_credentials() {
    // The pair in the NATS manual's example; it opens nothing.
    let seed = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY";
    let public = "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4";
    let extra = format!("authorization {{ users: [ {{ nkey: {public} }} ] }}");
    let server = NatsServer::start(&ServerOptions {
        extra_config: extra,
        ..Default::default()
    });
    let server = server.expect("a nats-server");
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("seed");
    std::fs::write(
        &file,
        format!("-----BEGIN USER NKEY SEED-----\n{seed}\n------END------\n"),
    )
    .expect("a file");
    let mut options = url(server.url());
    options.credentials = Credentials::NkeySeedFile(file.clone());
    Broker::connect(&options).await.expect("a connection");
    options.credentials = Credentials::NkeySeedFile(folder.path().join("absent"));
    let error = refused(&options).await;
    assert_eq!(error.kind(), &BrokerErrorKind::Configuration);
    std::fs::write(&file, "nothing").expect("a file");
    options.credentials = Credentials::NkeySeedFile(file);
    assert_eq!(
        refused(&options).await.kind(),
        &BrokerErrorKind::Configuration
    );

    let extra = "authorization { token: \"t0ken\" }".to_owned();
    let server = NatsServer::start(&ServerOptions {
        extra_config: extra,
        ..Default::default()
    });
    let server = server.expect("a nats-server");
    let mut options = url(server.url());
    options.credentials = Credentials::Token("t0ken".to_owned().into());
    Broker::connect(&options).await.expect("a connection");
}

const RELAY_ONLY: &str = r#"
authorization { users: [
  { user: admin, password: a }
  { user: relay, password: r, permissions: {
      publish: ["trellara.shop.tx.>", "$JS.API.STREAM.INFO.TRELLARA_shop"]
      subscribe: ["_INBOX_relay.>"] } }
] }
"#;

#[tokio::test]
async fn a_denied_subject_is_named_at_once() {
    let extra_config = RELAY_ONLY.to_owned();
    let server = NatsServer::start(&ServerOptions {
        extra_config,
        ..Default::default()
    });
    let server = server.expect("a nats-server");
    let user = |name| url(format!("nats://{name}@127.0.0.1:{}", server.port()));
    let admin = Broker::connect(&user("admin:a"))
        .await
        .expect("a connection");
    let flow = "shop".parse().expect("a name");
    let stream = topology::create(&admin, &StreamSpec::new(flow, 1 << 20)).await;
    let stream = stream.expect("a stream").name;

    let mut options = user("relay:r");
    options.inbox_prefix = "_INBOX_relay".to_owned();
    let relay = Broker::connect(&options).await.expect("a connection");
    let publisher = Publisher::new(&relay, &stream);
    let may = publisher.publish(message("tx.0", 0, payload(1, 10))).await;
    assert_eq!(
        may,
        Outcome::Stored {
            sequence: StreamSequence(1)
        }
    );
    let began = std::time::Instant::now();
    let mut events = relay.events();
    let denied = publisher.publish(message("mark", 1, payload(2, 10))).await;
    assert_eq!(
        denied,
        Outcome::Denied {
            subject: "trellara.shop.mark".to_owned()
        }
    );
    let subject = "trellara.shop.mark".to_owned();
    let event = BrokerEvent::PermissionDenied {
        publish: true,
        subject,
    };
    assert_eq!(within(events.recv()).await.expect("an event"), event);
    // STREAM.INFO is allowed, MSG.GET is not.
    topology::facts(&relay, &stream).await.expect("facts");
    let error = Reader::new(&relay, &stream)
        .tail()
        .await
        .expect_err("a refusal");
    let subject = "$JS.API.STREAM.MSG.GET.TRELLARA_shop".to_owned();
    assert_eq!(error.kind(), &BrokerErrorKind::Permission { subject });
    assert!(
        began.elapsed() < Duration::from_secs(10),
        "it waited for a timeout"
    );

    // With the wrong inbox no answer can ever come; that is said too, and not as a timeout.
    let relay = Broker::connect(&user("relay:r"))
        .await
        .expect("a connection");
    let error = within(topology::facts(&relay, &stream))
        .await
        .expect_err("a refusal");
    assert!(
        matches!(error.kind(), BrokerErrorKind::Permission { .. }),
        "{error}"
    );
    assert!(
        began.elapsed() < Duration::from_secs(20),
        "it waited for a timeout"
    );
}

#[tokio::test]
async fn a_broken_connection_is_made_again_and_told() {
    let mut server = NatsServer::start(&ServerOptions::default()).expect("a nats-server");
    let broker = rig::connect(&server).await;
    assert_eq!(broker.server_version(), ServerVersion::new(2, 15, 1));
    let first = broker.connection().borrow().generation;
    let mut subscription = broker
        .subscribe_core("trellara-position.shop")
        .await
        .expect("one");
    for round in 1..=2 {
        let mut events = broker.events();
        server.kill().expect("kill");
        while within(events.recv()).await.expect("an event") != BrokerEvent::Disconnected {}
        assert!(!broker.is_connected());
        let error = topology::facts(&broker, "X")
            .await
            .expect_err("no connection");
        assert!(error.is_passing(), "{error}");
        // One attempt in vain, with its reason.
        let failed = |event: &BrokerEvent| matches!(event, BrokerEvent::Other(_));
        while !failed(&within(events.recv()).await.expect("an event")) {}
        server.start_again().expect("start");
        while within(events.recv()).await.expect("an event") != BrokerEvent::Connected {}
        assert_eq!(broker.connection().borrow().generation, first + round);
    }
    assert!(broker.last_failure().is_some());
    // Subscriptions live on.
    let other = rig::connect(&server).await;
    let report = async {
        loop {
            other
                .publish_core("trellara-position.shop", "here".into())
                .await
                .expect("publish");
            let next = tokio::time::timeout(Duration::from_millis(100), subscription.next());
            if let Ok(Some(message)) = next.await {
                break message.payload;
            }
        }
    };
    assert_eq!(within(report).await, "here");
}

#[tokio::test]
async fn the_last_handle_ends_the_connection() {
    let server = NatsServer::start(&ServerOptions::default()).expect("a nats-server");
    let watcher = rig::connect(&server).await;
    let broker = rig::connect(&server).await;
    let clone = broker.clone();
    let mut subscription = broker.subscribe_core("x").await.expect("one");
    drop(broker);
    let ask = || watcher.request_core("x", "?".into(), Duration::from_secs(2));
    let request = async {
        loop {
            // Until the subscription has reached the server nobody listens.
            if let Ok(answer) = ask().await {
                break answer;
            }
        }
    };
    let reply = async {
        let asked = subscription.next().await.expect("a request");
        let reply = asked.reply.expect("a reply subject");
        clone
            .publish_core(&reply, "still here".into())
            .await
            .expect("publish");
    };
    let (answer, ()) = within(futures_util::future::join(request, reply)).await;
    assert_eq!(answer, "still here");
    drop((clone, subscription));
    let nobody = async { while !ask().await.is_err_and(|error| error.is_missing()) {} };
    within(nobody).await;
}

#[tokio::test]
async fn tls_problems_are_ours_to_mend() {
    let server = NatsServer::start(&ServerOptions::default()).expect("a nats-server");
    let folder = tempfile::tempdir().expect("a folder");
    let mut options = url(server.url());
    options.tls.ca_file = Some(folder.path().join("absent.pem"));
    assert_eq!(
        refused(&options).await.kind(),
        &BrokerErrorKind::Configuration
    );
    let empty = folder.path().join("empty.pem");
    std::fs::write(&empty, "").expect("a file");
    options.tls.ca_file = Some(empty.clone());
    assert_eq!(
        refused(&options).await.kind(),
        &BrokerErrorKind::Configuration
    );
    options.tls.ca_file = None;
    options.tls.certificate_file = Some(empty);
    assert_eq!(
        refused(&options).await.kind(),
        &BrokerErrorKind::Configuration
    );
}

/// An authority, and a certificate with its key signed by it, as PEM files.
fn certificates(folder: &Path) -> [PathBuf; 3] {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
    let authority_key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::new(Vec::new()).expect("parameters");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = params.self_signed(&authority_key).expect("an authority");
    let issuer = Issuer::new(params, authority_key);
    let key = KeyPair::generate().expect("a key");
    let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    let params = CertificateParams::new(names).expect("parameters");
    let certificate = params.signed_by(&key, &issuer).expect("a certificate");
    let write = |name: &str, text: String| {
        let path = folder.join(name);
        std::fs::write(&path, text).expect("a file");
        path
    };
    [
        write("ca.pem", authority.pem()),
        write("certificate.pem", certificate.pem()),
        write("key.pem", key.serialize_pem()),
    ]
}

#[tokio::test]
async fn tls_is_verified_both_ways() {
    let folders = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    let [ca, certificate, key] = certificates(folders[0].path());
    let [other_ca, other_certificate, other_key] = certificates(folders[1].path());
    let extra_config = format!(
        "tls {{ cert_file: {certificate:?}, key_file: {key:?}, ca_file: {ca:?}, verify: true }}"
    );
    let server = NatsServer::start(&ServerOptions {
        extra_config,
        ..Default::default()
    });
    let server = server.expect("a nats-server");
    let mut options = url(server.url());
    options.tls.ca_file = Some(ca);
    options.tls.certificate_file = Some(certificate);
    options.tls.key_file = Some(key);
    let broker = within(Broker::connect(&options))
        .await
        .expect("a connection");
    let missing = topology::facts(&broker, "X")
        .await
        .expect_err("no such stream");
    assert!(missing.is_missing(), "{missing}");
    // An authority that did not sign the server's certificate is our configuration.
    let mut stranger = options.clone();
    stranger.tls.ca_file = Some(other_ca);
    let error = refused(&stranger).await;
    assert_eq!(error.kind(), &BrokerErrorKind::Configuration, "{error}");
    // A certificate that the server does not accept is refused too, however it says so.
    options.tls.certificate_file = Some(other_certificate);
    options.tls.key_file = Some(other_key);
    refused(&options).await;
}
