//! DRAM: one server that all transfers share. A transfer takes at most what its
//! stream carries; what the server has left goes to all others in equal parts.
//! Short runs cost more of the server than they move.

/// A transfer in service.
#[derive(Clone, Copy, Debug)]
struct DramTransfer {
    route: u32,
    /// Bytes that are left.
    left: f64,
    /// Bytes per cycle that the stream carries.
    cap: f64,
    /// Bytes of service that a byte costs: 1 / efficiency.
    cost: f64,
    /// Bytes per cycle at present.
    rate: f64,
}

/// The server.
#[derive(Debug)]
pub(super) struct DramServer {
    /// Bytes of service per cycle.
    capacity: f64,
    clients: Vec<DramTransfer>,
    /// Up to when the clients' bytes are counted.
    now: u64,
    /// Counts changes, so that an announced end may be out of date.
    pub version: u64,
}

/// Bytes that rounding may leave of a transfer that is over.
const ROUNDING_BYTES: f64 = 1e-6;

impl DramServer {
    pub fn new(capacity: f64) -> DramServer {
        DramServer { capacity, clients: Vec::new(), now: 0, version: 0 }
    }

    /// Begins a transfer at `now`.
    pub fn join(&mut self, now: u64, route: u32, bytes: f64, cap: f64, cost: f64) {
        self.advance(now);
        self.clients.push(DramTransfer { route, left: bytes, cap, cost, rate: 0.0 });
        self.share();
    }

    /// When the next transfer ends, if nothing changes until then.
    pub fn next_end(&self) -> Option<u64> {
        let cycles =
            |client: &DramTransfer| ((client.left - ROUNDING_BYTES).max(0.0) / client.rate).ceil() as u64;
        self.clients.iter().map(cycles).min().map(|cycles| self.now + cycles)
    }

    /// Takes out the transfers that have ended by `now`.
    pub fn ended(&mut self, now: u64, ended: &mut Vec<u32>) {
        self.advance(now);
        let before = self.clients.len();
        self.clients.retain(|client| {
            let over = client.left <= ROUNDING_BYTES;
            if over {
                ended.push(client.route);
            }
            !over
        });
        if self.clients.len() != before {
            self.share();
        }
    }

    fn advance(&mut self, now: u64) {
        let cycles = (now - self.now) as f64;
        self.now = now;
        if cycles > 0.0 {
            for client in &mut self.clients {
                client.left -= client.rate * cycles;
            }
        }
    }

    /// Shares the capacity: equal parts, and what a capped client leaves is
    /// shared again.
    fn share(&mut self) {
        self.version += 1;
        let (mut capacity, mut open) = (self.capacity, self.clients.len());
        self.clients.iter_mut().for_each(|client| client.rate = -1.0);
        while open > 0 {
            let part = capacity / open as f64;
            let before = open;
            for client in self.clients.iter_mut().filter(|client| client.rate < 0.0) {
                let most = client.cap * client.cost;
                if most <= part {
                    client.rate = client.cap;
                    capacity -= most;
                    open -= 1;
                }
            }
            if open == before {
                for client in self.clients.iter_mut().filter(|client| client.rate < 0.0) {
                    client.rate = part / client.cost;
                }
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(ddr: &mut DramServer) -> Vec<(u64, u32)> {
        let (mut all, mut ended) = (Vec::new(), Vec::new());
        while let Some(at) = ddr.next_end() {
            ddr.ended(at, &mut ended);
            all.extend(ended.drain(..).map(|route| (at, route)));
        }
        all
    }

    #[test]
    fn one_transfer_is_as_fast_as_its_stream() {
        let mut ddr = DramServer::new(40.0);
        ddr.join(10, 0, 400.0, 4.0, 1.0);
        let mut ended = Vec::new();
        ddr.ended(109, &mut ended);
        assert!(ended.is_empty(), "a cycle too early");
        ddr.ended(110, &mut ended);
        assert_eq!(ended, [0]);
    }

    #[test]
    fn many_share_the_server_and_the_rest_speeds_up_when_one_ends() {
        let mut ddr = DramServer::new(8.0);
        for route in 0..4 {
            ddr.join(0, route, if route == 0 { 100.0 } else { 200.0 }, 4.0, 1.0);
        }
        // Two bytes a cycle each until 50; then 100 bytes are left of three.
        let later = 50 + (300.0f64 / 8.0).ceil() as u64;
        assert_eq!(ends(&mut ddr), [(50, 0), (later, 1), (later, 2), (later, 3)]);
    }

    #[test]
    fn short_runs_cost_more_of_the_server() {
        let mut ddr = DramServer::new(4.0);
        ddr.join(0, 0, 100.0, 4.0, 2.0);
        assert_eq!(ends(&mut ddr), [(50, 0)]);
    }
}
