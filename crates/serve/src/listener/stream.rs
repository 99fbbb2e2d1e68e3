//! A connection's stream that tells the connection's clock what happens.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use futures_util::FutureExt;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use super::clock::ConnectionClock;

/// A stream that knows whether its client has closed its side, though bytes before the end may be unread.
pub trait ClientSide {
    /// Whether the client sends nothing more.
    fn is_closed(&self) -> bool;
}

impl ClientSide for TcpStream {
    fn is_closed(&self) -> bool {
        let ready = self.ready(Interest::READABLE).now_or_never();
        ready.is_some_and(|ready| ready.is_ok_and(|ready| ready.is_read_closed()))
    }
}

impl ClientSide for TlsStream<TcpStream> {
    fn is_closed(&self) -> bool {
        self.get_ref().0.is_closed()
    }
}

/// A stream that hyper reads and writes, while the connection asks whether its client is there. All of
/// that happens in one task, so nobody waits for the lock.
pub struct SharedStream<S>(Arc<Mutex<S>>);

impl<S> SharedStream<S> {
    pub fn new(stream: S) -> SharedStream<S> {
        SharedStream(Arc::new(Mutex::new(stream)))
    }

    /// A read or write that panics ends its connection, so the contents do not matter then.
    pub fn lock(&self) -> MutexGuard<'_, S> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The stream, if nobody else has it.
    pub fn into_inner(self) -> Option<S> {
        Some(Arc::into_inner(self.0)?.into_inner().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A stream, and the clock that limits it.
pub struct TimedStream<S> {
    stream: SharedStream<S>,
    clock: Arc<ConnectionClock>,
}

impl<S> TimedStream<S> {
    /// The stream for hyper.
    pub fn new(stream: &SharedStream<S>, clock: Arc<ConnectionClock>) -> TimedStream<S> {
        TimedStream { stream: SharedStream(Arc::clone(&stream.0)), clock }
    }

    /// Tells the clock of a write.
    fn note_write(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match &written {
            Poll::Pending => self.clock.is_blocked(),
            Poll::Ready(written) => self.clock.has_written(*written.as_ref().unwrap_or(&0)),
        }
        written
    }

    /// Tells the clock of a flush, for which hyper has written all that it has.
    fn note_flush(&self, flushed: Poll<io::Result<()>>) -> Poll<io::Result<()>> {
        match flushed {
            Poll::Pending => self.clock.is_blocked(),
            Poll::Ready(_) => self.clock.has_flushed(),
        }
        flushed
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TimedStream<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut *self.stream.lock()).poll_read(context, buffer);
        if read.is_ready() && buffer.filled().len() > before {
            self.clock.has_read(&buffer.filled()[before..]);
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TimedStream<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut *self.stream.lock()).poll_write(context, bytes);
        self.note_write(written)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut *self.stream.lock()).poll_flush(context);
        self.note_flush(flushed)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut *self.stream.lock()).poll_shutdown(context);
        self.note_flush(shut)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut *self.stream.lock()).poll_write_vectored(context, slices);
        self.note_write(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.lock().is_write_vectored()
    }
}
