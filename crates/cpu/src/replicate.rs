//! Which weights a machine of several sockets should hold once in each of them.
//! Only the choice is made here; copies are not built yet, and [`crate::Cpu`]
//! refuses to make any.

use girih_graph::Error;

/// Whether weights are copied into the memory of each socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Replicate {
    /// Each weight lies in one place.
    #[default]
    Off,
    /// The hottest are copied, up to so many bytes in each socket.
    UpTo(u64),
}

/// A weight that could be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// What a copy of it takes.
    pub bytes: u64,
    /// The bytes that a step reads of it from a socket that it does not lie in,
    /// as long as it is not copied.
    pub remote: u64,
}

/// The indexes of the weights to copy into every socket but the one that they
/// lie in: those that save most remote bytes for each byte of a copy first,
/// the smaller of two equals before the larger, while they fit under `cap`
/// bytes in each socket. Weights without remote reads are never copied, and on
/// one socket none is.
pub fn chosen(weights: &[Candidate], sockets: usize, cap: u64) -> Vec<usize> {
    if sockets < 2 {
        return Vec::new();
    }
    let is_worth = |&index: &usize| weights[index].bytes > 0 && weights[index].remote > 0;
    let mut order: Vec<usize> = (0..weights.len()).filter(is_worth).collect();
    order.sort_by(|&a, &b| {
        let (a, b) = (weights[a], weights[b]);
        let (gain_a, gain_b) = (product(a.remote, b.bytes), product(b.remote, a.bytes));
        gain_b.cmp(&gain_a).then(a.bytes.cmp(&b.bytes))
    });
    let mut room = cap;
    order.retain(|&index| {
        let fits = weights[index].bytes <= room;
        room -= if fits { weights[index].bytes } else { 0 };
        fits
    });
    order
}

fn product(a: u64, b: u64) -> u128 {
    u128::from(a) * u128::from(b)
}

/// Refuses what is not built.
///
/// # Errors
/// When copies are wanted on a machine of several sockets.
pub(crate) fn check(replicate: Replicate, sockets: usize) -> Result<(), Error> {
    match replicate {
        Replicate::UpTo(_) if sockets > 1 => Err(Error::new(format!(
            "this machine has {sockets} sockets, and copies of weights in each of them are not built yet: \
             turn replication off"
        ))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WEIGHTS: [Candidate; 5] = [
        Candidate { bytes: 1000, remote: 500 },
        Candidate { bytes: 10, remote: 90 },
        Candidate { bytes: 0, remote: 7 },
        Candidate { bytes: 400, remote: 200 },
        Candidate { bytes: 300, remote: 0 },
    ];

    #[test]
    fn the_hottest_that_fit_are_copied() {
        assert_eq!(chosen(&WEIGHTS, 2, u64::MAX), [1, 3, 0]);
        assert_eq!(chosen(&WEIGHTS, 2, 1009), [1, 3]);
        assert_eq!(chosen(&WEIGHTS, 4, 399), [1]);
        assert!(chosen(&WEIGHTS, 2, 9).is_empty());
    }

    #[test]
    fn what_does_not_fit_leaves_room_for_what_does() {
        let weights = [Candidate { bytes: 100, remote: 300 }, Candidate { bytes: 50, remote: 100 }];
        assert_eq!(chosen(&weights, 2, 80), [1]);
    }

    #[test]
    fn one_socket_copies_nothing() {
        assert!(chosen(&WEIGHTS, 1, u64::MAX).is_empty());
        assert!(chosen(&WEIGHTS, 0, u64::MAX).is_empty());
        assert!(check(Replicate::UpTo(1 << 30), 1).is_ok());
    }

    #[test]
    fn several_sockets_are_refused_by_name() {
        let error = check(Replicate::UpTo(1), 2).unwrap_err();
        assert!(error.to_string().contains("2 sockets"), "{error}");
        assert!(check(Replicate::Off, 2).is_ok());
    }
}
