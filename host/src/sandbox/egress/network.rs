//! The two things that egress asks of the network, apart so that tests can answer for it.

use std::{io, net::SocketAddr};

use async_trait::async_trait;
use tokio::net::TcpStream;

/// Names and connections. What is resolved is checked before it is connected to, and the address that was
/// checked is the one connected to: there is no second look-up that could answer differently.
#[async_trait]
pub(super) trait Network: Send + Sync {
    async fn resolve(&self, name: &str, port: u16) -> io::Result<Vec<SocketAddr>>;
    async fn connect(&self, to: SocketAddr) -> io::Result<TcpStream>;
}

/// The operating system's resolver and sockets.
pub(super) struct SystemNetwork;

#[async_trait]
impl Network for SystemNetwork {
    async fn resolve(&self, name: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        Ok(tokio::net::lookup_host((name, port)).await?.collect())
    }

    async fn connect(&self, to: SocketAddr) -> io::Result<TcpStream> {
        TcpStream::connect(to).await
    }
}
