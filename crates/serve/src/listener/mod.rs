//! Accepts connections and serves them with limits on time, size and number, which `axum::serve`
//! does not have.

mod clock;
mod connection;
mod head_scan;
mod limits;
mod places;
mod stream;
pub mod tls;

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use axum::Router;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use crate::drain::Drain;
use connection::serve_connection;
pub use limits::ListenerLimits;
use places::{ConnectionPlace, ConnectionPlaces};

/// The pause after the process has run out of descriptors or memory for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The time for which a new connection waits for the place of one that was displaced.
const PLACE_WAIT: Duration = Duration::from_millis(500);

/// The time that connections have to write what they have, when the server closes.
pub(crate) const CLOSING_TIME: Duration = Duration::from_secs(1);

/// How a router is served.
#[derive(Clone, Default)]
pub struct ListenerOptions {
    /// The limits on connections.
    pub limits: ListenerLimits,
    /// TLS; without it, connections are plain.
    pub tls: Option<TlsAcceptor>,
}

/// A socket that listens at this address.
///
/// # Errors
/// When the address is taken or is none of this machine.
pub(crate) fn listen(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    let socket = std::net::TcpListener::bind(address)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Serves `router` on a socket until [`Drain::close`], and then for a moment, in which connections may
/// write what they have.
pub async fn serve(socket: TcpListener, router: Router, options: ListenerOptions, drain: Drain) {
    let places = ConnectionPlaces::new(options.limits.connections);
    Acceptor { router, options, drain, places }.run(socket).await;
}

/// What accepts connections.
struct Acceptor {
    router: Router,
    options: ListenerOptions,
    drain: Drain,
    places: ConnectionPlaces,
}

impl Acceptor {
    /// Accepts until the server closes, and then waits a moment for the connections.
    async fn run(self, socket: TcpListener) {
        let mut connections = JoinSet::new();
        let mut closing = pin!(self.drain.closing());
        loop {
            tokio::select! {
                () = &mut closing => break,
                // A panic of a connection has ended that connection only.
                Some(_) = connections.join_next() => {}
                accepted = socket.accept() => match accepted {
                    Ok((stream, _)) => self.admit(stream, &mut connections).await,
                    Err(error) => pause_after(&error).await,
                },
            }
        }
        drop(socket);
        let all = async { while connections.join_next().await.is_some() {} };
        // What is left is dropped, and its requests are cancelled.
        let _ = timeout(CLOSING_TIME, all).await;
    }

    /// Serves a connection if there is a place for it; else refuses it.
    async fn admit(&self, stream: TcpStream, connections: &mut JoinSet<()>) {
        let stream = without_delay(stream);
        match timeout(PLACE_WAIT, self.places.take(self.options.limits)).await {
            Ok(Some(place)) => {
                connections.spawn(self.connection(stream, place));
            }
            Ok(None) | Err(_) => refuse(stream, self.options.tls.is_some()),
        }
    }

    /// The connection, from its handshake to its end.
    fn connection(
        &self,
        stream: TcpStream,
        place: ConnectionPlace,
    ) -> impl Future<Output = ()> + Send + use<> {
        let ListenerOptions { limits, tls } = self.options.clone();
        let (router, drain) = (self.router.clone(), self.drain.clone());
        async move {
            let Some(tls) = tls else {
                return serve_connection(stream, router, limits, drain, place).await;
            };
            let handshake = tokio::select! {
                stream = tls.accept(stream) => stream,
                _ = place.clock.expired() => return,
            };
            // A handshake that fails has nobody to be told.
            if let Ok(stream) = handshake {
                serve_connection(stream, router, limits, drain, place).await;
            }
        }
    }
}

/// A connection whose small writes do not wait for the client's acknowledgement of earlier ones (Nagle's algorithm, RFC 896): each
/// token or event is one.
pub(crate) fn without_delay(stream: TcpStream) -> TcpStream {
    // It fails if the client is gone.
    let _ = stream.set_nodelay(true);
    stream
}

/// Waits if accepting again at once would fail again.
pub(crate) async fn pause_after(error: &io::Error) {
    let is_of_client = matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionRefused
    );
    if !is_of_client {
        sleep(ACCEPT_PAUSE).await;
    }
}

/// Tells a client that there is no place for its connection, if that is possible without waiting.
fn refuse(stream: TcpStream, is_tls: bool) {
    const FULL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\n\
        content-type: text/plain\r\ncontent-length: 35\r\n\r\nthe server has no free connections\n";
    if is_tls {
        return;
    }
    if let Ok(stream) = stream.into_std() {
        // A client that cannot be told sees the connection end.
        let _ = io::Write::write(&mut &stream, FULL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn tokens_do_not_wait_for_acknowledgements() {
        let socket = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
        let address = socket.local_addr().expect("it is bound");
        let (client, accepted) = tokio::join!(TcpStream::connect(address), socket.accept());
        let (_client, (stream, _)) = (client.expect("it listens"), accepted.expect("a client connects"));
        assert!(!stream.nodelay().expect("a connection"), "the system's default");
        assert!(without_delay(stream).nodelay().expect("a connection"));
    }
}
