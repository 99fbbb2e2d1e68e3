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

/// The open files that a server needs beside its connections: those of models, workers of chat templates, threads, and
/// the connections that are being refused.
const OTHER_FILES: u64 = 64;

impl ListenerLimits {
    /// The same limits, with no more connections than a process that may have `files` open files can serve. When it
    /// runs out of files, it cannot accept a connection to displace a silent one.
    pub fn within_open_files(self, files: u64) -> ListenerLimits {
        let left = files - OTHER_FILES.min(files / 2);
        let left = usize::try_from(left).unwrap_or(usize::MAX).max(1);
        ListenerLimits { connections: self.connections.min(left), ..self }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_files_for_the_rest() {
        let within = |files| ListenerLimits::default().within_open_files(files).connections;
        assert_eq!([0, 1, 40, 1024, 1088, 1 << 20].map(within), [1, 1, 20, 960, 1024, 1024]);
    }
}
