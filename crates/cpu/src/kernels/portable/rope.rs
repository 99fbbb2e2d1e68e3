//! Rotation of the pairs of a head.

use girih_graph::Pairing;

use super::Turns;

pub(super) fn rotate(x: &[f32], turns: Turns<'_>, pairing: Pairing, y: &mut [f32]) {
    let angles = turns.cosines.iter().zip(turns.sines);
    match pairing {
        Pairing::Halves => {
            let (x, x_upper) = x.split_at(turns.cosines.len());
            let (y, y_upper) = y.split_at_mut(turns.cosines.len());
            let ys = y.iter_mut().zip(y_upper);
            for (((a, b), (y, y_upper)), (cosine, sine)) in x.iter().zip(x_upper).zip(ys).zip(angles) {
                (*y, *y_upper) = (a * cosine - b * sine, a * sine + b * cosine);
            }
        }
        Pairing::Neighbours => {
            let (x, y) = (x.as_chunks::<2>().0, y.as_chunks_mut::<2>().0);
            for (([a, b], y), (cosine, sine)) in x.iter().zip(y).zip(angles) {
                *y = [a * cosine - b * sine, a * sine + b * cosine];
            }
        }
    }
}
