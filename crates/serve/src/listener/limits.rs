//! The limits of a listener.

use std::time::Duration;

/// What a listener allows its clients.
#[derive(Clone, Copy, Debug)]
pub struct ListenerLimits {
    /// The time for the headers of a request, and for the TLS handshake before.
    pub headers: Duration,
    /// The time between two requests of a connection.
    pub idle: Duration,
    /// The time for which a client may read nothing of a response that is being written, and by which it
    /// may be behind.
    pub write_stall: Duration,
    /// The bytes that a client that is behind has to read in each second.
    pub write_bytes_per_second: u64,
    /// The time that a client has to close a connection after its last response.
    pub linger: Duration,
    /// The maximum number of connections.
    pub connections: usize,
    /// The maximum bytes of a request's line and headers.
    pub header_bytes: usize,
    /// The maximum number of headers.
    pub header_count: usize,
}

impl Default for ListenerLimits {
    fn default() -> ListenerLimits {
        ListenerLimits {
            headers: Duration::from_secs(10),
            idle: Duration::from_secs(60),
            write_stall: Duration::from_secs(30),
            write_bytes_per_second: 1 << 10,
            linger: Duration::from_secs(2),
            connections: 1024,
            header_bytes: 32 << 10,
            header_count: 100,
        }
    }
}
