//! The sockets to which routers connect: one publishes events as ZeroMQ's PUB does, the other one answers requests for
//! messages that were missed as its ROUTER does.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use girih::{Error, ErrorKind, Result};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Semaphore;
use tokio::sync::mpsc::Receiver;
use tokio::time::timeout;

use super::address::{KvEventsAddress, KvEventsOptions};
use super::publisher::{EventMessage, KvEvents};
use super::zmtp::{ClientFrame, FrameReader, FrameWriter, SocketType, accept};
use crate::listener;

/// The maximum number of connections to each socket.
const MAX_CONNECTIONS: usize = 32;

/// The maximum number of topics that a subscriber may name.
const MAX_TOPICS: usize = 64;

/// The time for a handshake.
const HANDSHAKE_TIME: Duration = Duration::from_secs(10);

/// The time in which a client has to take a message.
const WRITE_TIME: Duration = Duration::from_secs(30);

/// The time in which a client has to ask for messages; one that asks later connects again.
const REQUEST_TIME: Duration = Duration::from_secs(60);

/// The number of the message behind the last one of a replay: -1, as vLLM's.
const END: [u8; 8] = [0xff; 8];

const PUBLISHER: SocketType = SocketType { name: "PUB", peers: &["SUB", "XSUB"] };
const ROUTER: SocketType = SocketType { name: "ROUTER", peers: &["DEALER", "REQ", "ROUTER"] };

/// Sockets that listen, before they are served.
pub(crate) struct EventSockets {
    events: std::net::TcpListener,
    replay: Option<std::net::TcpListener>,
}

/// What is done with a connection.
type Serve = fn(TcpStream, Arc<KvEvents>) -> Pin<Box<dyn Future<Output = io::Result<()>> + Send>>;

impl EventSockets {
    /// Listens at the addresses of the options.
    ///
    /// # Errors
    /// When an address is taken, or other machines can reach it and must not.
    pub fn listen(options: &KvEventsOptions) -> Result<EventSockets> {
        let listen = |address: KvEventsAddress| {
            address.check(options.is_known_to_be_open)?;
            listener::listen(address.0).map_err(|error| {
                let sentence = format!("events cannot be published at {address}: {error}");
                Error::with_kind(ErrorKind::Other, sentence)
            })
        };
        let events = listen(options.address)?;
        Ok(EventSockets { events, replay: options.replay.map(listen).transpose()? })
    }

    /// The addresses that they listen on.
    ///
    /// # Errors
    /// When the system does not know them.
    pub fn addresses(&self) -> io::Result<(SocketAddr, Option<SocketAddr>)> {
        let replay = self.replay.as_ref().map(std::net::TcpListener::local_addr);
        Ok((self.events.local_addr()?, replay.transpose()?))
    }

    /// Serves both from now on, on the runtime that is entered.
    ///
    /// # Errors
    /// When the runtime cannot wait for a socket.
    pub fn serve(self, events: &Arc<KvEvents>) -> io::Result<()> {
        let publish: Serve = |stream, events| Box::pin(publish(stream, events));
        let answer: Serve = |stream, events| Box::pin(answer(stream, events));
        let sockets = [(Some(self.events), publish), (self.replay, answer)];
        for (socket, serve) in sockets {
            let Some(socket) = socket else { continue };
            tokio::spawn(accept_all(TcpListener::from_std(socket)?, Arc::clone(events), serve));
        }
        Ok(())
    }
}

/// Serves the connections to a socket.
async fn accept_all(socket: TcpListener, events: Arc<KvEvents>, serve: Serve) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let stream = match socket.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                listener::pause_after(&error).await;
                continue;
            }
        };
        // A connection without a place is closed.
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else { continue };
        let stream = listener::without_delay(stream);
        // It fails if the client is gone.
        let _ = keep_alive(&stream);
        let connection = serve(stream, Arc::clone(&events));
        tokio::spawn(async move {
            // A client that leaves or is wrong has nobody to be told.
            let _ = connection.await;
            drop(place);
        });
    }
}

/// Asks the system to find out whether a client is still there when nothing is sent: one that has vanished leaves its place.
fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    // Options are of the socket, not of the descriptor.
    let same = stream.as_fd().try_clone_to_owned()?;
    TcpSocket::from_std_stream(same.into()).set_keepalive(true)
}

/// Sends a subscriber the messages of its topics, until it leaves or is dropped.
async fn publish(stream: TcpStream, events: Arc<KvEvents>) -> io::Result<()> {
    let (mut reader, mut writer) = in_time(HANDSHAKE_TIME, accept(stream, PUBLISHER)).await?;
    let mut topics = Topics::default();
    let mut messages: Receiver<Arc<EventMessage>> = events.subscribe();
    loop {
        tokio::select! {
            frame = reader.frame() => take_subscription(frame?, &mut topics, &mut writer).await?,
            message = messages.recv() => {
                let Some(message) = message else { return Ok(()) };
                if topics.has(&message.topic) {
                    let number = message.number.to_be_bytes();
                    let frames = [message.topic.as_bytes(), &number, &message.payload];
                    let Ok(written) = timeout(WRITE_TIME, writer.message(&frames)).await else {
                        events.drop_subscriber(&mut messages);
                        return Ok(());
                    };
                    written?;
                }
            }
        }
    }
}

/// The topics of a subscriber: beginnings of those of messages.
#[derive(Default)]
struct Topics(Vec<Bytes>);

impl Topics {
    fn has(&self, topic: &str) -> bool {
        self.0.iter().any(|beginning| topic.as_bytes().starts_with(beginning))
    }

    fn add(&mut self, topic: Bytes) -> io::Result<()> {
        if self.0.len() == MAX_TOPICS {
            return Err(io::ErrorKind::InvalidData.into());
        }
        self.0.push(topic);
        Ok(())
    }

    /// Removes a topic once; a subscriber may have named it several times.
    fn remove(&mut self, topic: &Bytes) {
        if let Some(at) = self.0.iter().position(|known| known == topic) {
            self.0.remove(at);
        }
    }
}

/// A subscription or its end: a message that begins with 1 or 0 in ZMTP 3.0, a command in ZMTP 3.1.
async fn take_subscription(
    frame: ClientFrame,
    topics: &mut Topics,
    writer: &mut FrameWriter,
) -> io::Result<()> {
    match frame {
        ClientFrame::Message { body, .. } => match body.first() {
            Some(1) => topics.add(body.slice(1..)),
            Some(0) => {
                topics.remove(&body.slice(1..));
                Ok(())
            }
            // What subscribers send beside is for nobody.
            _ => Ok(()),
        },
        ClientFrame::Command(name, data) => match &*name {
            "SUBSCRIBE" => topics.add(data),
            "CANCEL" => {
                topics.remove(&data);
                Ok(())
            }
            _ => answer_ping(&name, &data, writer).await,
        },
    }
}

/// Answers a `PING`, which has two bytes of time before what is sent back; other commands need no answer.
async fn answer_ping(name: &str, data: &Bytes, writer: &mut FrameWriter) -> io::Result<()> {
    match (name, data.get(2..)) {
        ("PING", Some(context)) => in_time(WRITE_TIME, writer.command("PONG", context)).await,
        _ => Ok(()),
    }
}

/// Answers requests for messages: an empty frame and a number of 8 bytes ask for the messages from that number on.
async fn answer(stream: TcpStream, events: Arc<KvEvents>) -> io::Result<()> {
    let (mut reader, mut writer) = in_time(HANDSHAKE_TIME, accept(stream, ROUTER)).await?;
    loop {
        let request = in_time(REQUEST_TIME, request(&mut reader, &mut writer)).await?;
        let Some(request) = request else { continue };
        for message in events.since(request) {
            let number = message.number.to_be_bytes();
            let frames = [&[][..], message.topic.as_bytes(), &number, &message.payload];
            in_time(WRITE_TIME, writer.message(&frames)).await?;
        }
        in_time(WRITE_TIME, writer.message(&[&[], &[], &END, &[]])).await?;
    }
}

/// The number that the next message asks for; `None` if it is no request.
async fn request(reader: &mut FrameReader, writer: &mut FrameWriter) -> io::Result<Option<u64>> {
    let mut frames: Vec<Bytes> = Vec::new();
    loop {
        match reader.frame().await? {
            ClientFrame::Command(name, data) => answer_ping(&name, &data, writer).await?,
            ClientFrame::Message { .. } if frames.len() > 2 => return Err(io::ErrorKind::InvalidData.into()),
            ClientFrame::Message { body, more } => {
                frames.push(body);
                if !more {
                    break;
                }
            }
        }
    }
    let [delimiter, number] = &frames[..] else { return Ok(None) };
    let number = <[u8; 8]>::try_from(&number[..]).ok().filter(|_| delimiter.is_empty());
    Ok(number.map(u64::from_be_bytes))
}

/// What a future gives within this time.
async fn in_time<T>(time: Duration, future: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    timeout(time, future).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_kept_alive() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        runtime.block_on(async {
            let socket = listener::listen("127.0.0.1:0".parse().unwrap()).unwrap();
            let stream = TcpStream::connect(socket.local_addr().unwrap()).await.unwrap();
            keep_alive(&stream).unwrap();
            let same = stream.as_fd().try_clone_to_owned().unwrap();
            assert!(TcpSocket::from_std_stream(same.into()).keepalive().unwrap());
        });
    }
}
