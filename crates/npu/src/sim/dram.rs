//! DRAM as one server that all transfers share. A transfer gets at most the
//! rate of its stream; the remaining capacity is divided equally among the
//! others. Short runs cost more service bytes than they move.

/// A running transfer.
#[derive(Clone, Copy, Debug)]
struct DramTransfer {
    route: u32,
    /// Remaining bytes.
    left: f64,
    /// The rate of the stream, in bytes per cycle.
    cap: f64,
    /// Service bytes per byte moved: 1 / efficiency.
    cost: f64,
    /// The current rate, in bytes per cycle.
    rate: f64,
}

/// The DRAM server.
#[derive(Debug)]
pub(super) struct DramServer {
    /// Service bytes per cycle.
    capacity: f64,
    transfers: Vec<DramTransfer>,
    /// The cycle up to which the transfers are counted.
    now: u64,
    /// The number of changes; it shows whether a scheduled end is stale.
    pub version: u64,
}

/// The remainder, in bytes, below which a transfer counts as finished: rounding
/// may leave it.
const ROUNDING_BYTES: f64 = 1e-6;

impl DramServer {
    pub fn new(capacity: f64) -> DramServer {
        DramServer { capacity, transfers: Vec::new(), now: 0, version: 0 }
    }

    /// Begins a transfer at `now`.
    pub fn join(&mut self, now: u64, route: u32, bytes: f64, cap: f64, cost: f64) {
        self.advance(now);
        self.transfers.push(DramTransfer { route, left: bytes, cap, cost, rate: 0.0 });
        self.share();
    }

    /// The end of the next transfer, if nothing changes until then.
    pub fn next_end(&self) -> Option<u64> {
        let cycles = |transfer: &DramTransfer| {
            ((transfer.left - ROUNDING_BYTES).max(0.0) / transfer.rate).ceil() as u64
        };
        self.transfers.iter().map(cycles).min().map(|cycles| self.now + cycles)
    }

    /// Removes the transfers that have ended by `now` and appends their routes
    /// to `ended`.
    pub fn remove_ended(&mut self, now: u64, ended: &mut Vec<u32>) {
        self.advance(now);
        let before = self.transfers.len();
        self.transfers.retain(|transfer| {
            let over = transfer.left <= ROUNDING_BYTES;
            if over {
                ended.push(transfer.route);
            }
            !over
        });
        if self.transfers.len() != before {
            self.share();
        }
    }

    fn advance(&mut self, now: u64) {
        let cycles = (now - self.now) as f64;
        self.now = now;
        if cycles > 0.0 {
            for transfer in &mut self.transfers {
                transfer.left -= transfer.rate * cycles;
            }
        }
    }

    /// Divides the capacity equally; what a capped transfer leaves is divided
    /// again.
    fn share(&mut self) {
        self.version += 1;
        let (mut capacity, mut open) = (self.capacity, self.transfers.len());
        self.transfers.iter_mut().for_each(|transfer| transfer.rate = -1.0);
        while open > 0 {
            let part = capacity / open as f64;
            let before = open;
            for transfer in self.transfers.iter_mut().filter(|transfer| transfer.rate < 0.0) {
                let max = transfer.cap * transfer.cost;
                if max <= part {
                    transfer.rate = transfer.cap;
                    capacity -= max;
                    open -= 1;
                }
            }
            if open == before {
                for transfer in self.transfers.iter_mut().filter(|transfer| transfer.rate < 0.0) {
                    transfer.rate = part / transfer.cost;
                }
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(dram: &mut DramServer) -> Vec<(u64, u32)> {
        let (mut all, mut ended) = (Vec::new(), Vec::new());
        while let Some(at) = dram.next_end() {
            dram.remove_ended(at, &mut ended);
            all.extend(ended.drain(..).map(|route| (at, route)));
        }
        all
    }

    #[test]
    fn one_transfer_is_as_fast_as_its_stream() {
        let mut dram = DramServer::new(40.0);
        dram.join(10, 0, 400.0, 4.0, 1.0);
        let mut ended = Vec::new();
        dram.remove_ended(109, &mut ended);
        assert!(ended.is_empty(), "one cycle too early");
        dram.remove_ended(110, &mut ended);
        assert_eq!(ended, [0]);
    }

    #[test]
    fn transfers_share_the_server_and_speed_up_when_one_ends() {
        let mut dram = DramServer::new(8.0);
        for route in 0..4 {
            dram.join(0, route, if route == 0 { 100.0 } else { 200.0 }, 4.0, 1.0);
        }
        // Two bytes per cycle each until cycle 50; then three transfers have 100 bytes left.
        let later = 50 + (300.0f64 / 8.0).ceil() as u64;
        assert_eq!(ends(&mut dram), [(50, 0), (later, 1), (later, 2), (later, 3)]);
    }

    #[test]
    fn short_runs_cost_more_of_the_server() {
        let mut dram = DramServer::new(4.0);
        dram.join(0, 0, 100.0, 4.0, 2.0);
        assert_eq!(ends(&mut dram), [(50, 0)]);
    }
}
