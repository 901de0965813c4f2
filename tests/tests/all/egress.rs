//! Connections of the host's own: to model endpoints, with the trust that tools have too.

use std::{error::Error, time::Duration};

use agentloop_host::http::{ClientSettings, TransportFault, explain, model_client};
use agentloop_tests::servers::{Authority, Reply, Server};

fn settings() -> ClientSettings {
    ClientSettings {
        // Whoever runs the tests may have a proxy, which would not find the servers of this machine.
        environment_proxy: false,
        ..ClientSettings::default()
    }
}

/// The body, or the fault and what is said of it.
async fn get(settings: &ClientSettings, url: &str) -> Result<String, (TransportFault, String)> {
    let told = |error| {
        (
            TransportFault::of(&error as &(dyn Error + 'static)),
            explain(&error),
        )
    };
    let client = model_client(settings).unwrap();
    let response = client.get(url).send().await.map_err(told)?;
    assert_eq!(response.status().as_u16(), 200);
    response.text().await.map_err(told)
}

/// B41.
#[tokio::test]
async fn a_model_endpoint_with_a_private_authority_needs_the_setting() {
    let authority = Authority::generate();
    let dir = tempfile::tempdir().unwrap();
    let pem = dir.path().join("corp.pem");
    authority.write_pem(&pem);
    let tls = authority.server_config(&["localhost"]);
    let server = Server::start_tls(tls, |_| Reply::text("a model")).await;
    let url = server.origin_as("localhost") + "/v1?key=k1";

    let (fault, said) = get(&settings(), &url).await.unwrap_err();
    assert_eq!(fault, TransportFault::UntrustedCertificate);
    assert!(fault.to_string().contains("not trusted"));
    assert!(fault.hint().unwrap().contains("`extra_ca_files`"));
    assert!(said.contains("UnknownIssuer"), "{said}");
    assert!(!said.contains("k1"), "{said}");

    let trusting = ClientSettings {
        extra_ca_files: vec![pem],
        ..settings()
    };
    assert_eq!(get(&trusting, &url).await.unwrap(), "a model");

    // The certificate is for another name.
    let (fault, said) = get(&trusting, &server.url("/")).await.unwrap_err();
    assert_eq!(fault, TransportFault::BadCertificate);
    assert_eq!(fault.hint(), None);
    assert!(said.contains("127.0.0.1"), "{said}");
}

#[tokio::test]
async fn faults_of_model_endpoints_are_told_apart() {
    let silent = Server::start(|_| Reply::silent()).await;
    let stalling = Server::start(|_| Reply::stalling("so far")).await;
    let truncated = Server::start(|_| Reply::truncated()).await;
    let mute = Server::start(|_| Reply::steps([])).await;
    let closed = Server::start(|_| Reply::silent()).await;
    let nobody = closed.url("/");
    drop(closed);
    let impatient = ClientSettings {
        read_timeout: Duration::from_millis(200),
        ..settings()
    };
    let table = [
        (&impatient, silent.url("/"), TransportFault::Timeout),
        (&impatient, stalling.url("/"), TransportFault::Timeout),
        (&settings(), truncated.url("/"), TransportFault::Closed),
        (&settings(), mute.url("/"), TransportFault::Closed),
        (&settings(), nobody, TransportFault::Refused),
    ];
    for (settings, url, expected) in table {
        let (fault, said) = get(settings, &url).await.unwrap_err();
        assert_eq!(fault, expected, "{url}: {said}");
        assert!(!said.is_empty());
        assert!(!said.contains("http://"), "{said}");
    }
}

/// A redirect could carry the key to another host.
#[tokio::test]
async fn model_clients_follow_no_redirect() {
    let elsewhere = Server::start(|_| Reply::text("no")).await;
    let to = elsewhere.url("/");
    let server = Server::start(move |_| Reply::redirect(&to)).await;
    let client = model_client(&settings()).unwrap();
    let response = client.get(server.url("/")).send().await.unwrap();
    assert_eq!(response.status().as_u16(), 302);
    assert_eq!(elsewhere.connections(), 0);
    let agent = server.requests()[0]
        .header("user-agent")
        .unwrap()
        .to_owned();
    assert!(agent.starts_with("agentloop-host/"), "{agent}");
}
