//! Tables of handles: a handle is a number that a table looks up, so that one that was closed is refused, not followed.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::status::{Fault, Result, Status};

/// The lowest bits of a handle tell its kind, so that a handle of one table is none of another.
const KIND_BITS: u32 = 4;

/// The next bits are the place in the table: two million of them with 64 bits, a thousand with 32.
const PLACE_BITS: u32 = usize::BITS / 3;

/// The highest bits count how often the place was used.
const GENERATION_BITS: u32 = usize::BITS - KIND_BITS - PLACE_BITS;

/// A table of values that handles stand for.
#[derive(Debug)]
pub struct Handles<T> {
    /// What errors call a value.
    name: &'static str,
    /// The number of the kind, from 1, so that no handle is null.
    kind: usize,
    places: Mutex<HandlePlaces<T>>,
}

#[derive(Debug)]
struct HandlePlaces<T> {
    all: Vec<HandlePlace<T>>,
    free: Vec<usize>,
}

#[derive(Debug)]
struct HandlePlace<T> {
    generation: usize,
    value: Option<Arc<T>>,
}

impl<T> Handles<T> {
    /// A table without values. Tables have different `kind`s, from 1 to 15.
    pub const fn new(name: &'static str, kind: usize) -> Handles<T> {
        assert!(kind > 0 && kind < 1 << KIND_BITS);
        Handles { name, kind, places: Mutex::new(HandlePlaces { all: Vec::new(), free: Vec::new() }) }
    }

    /// Adds a value and returns its handle.
    ///
    /// # Errors
    /// When the table is full.
    pub fn insert(&self, value: Arc<T>) -> Result<usize> {
        let mut places = self.lock();
        let place = match places.free.pop() {
            Some(place) => place,
            None if places.all.len() >> PLACE_BITS == 0 => {
                places.all.push(HandlePlace { generation: 0, value: None });
                places.all.len() - 1
            }
            None => {
                let sentence = format!("too many handles of a {} are open: close some", self.name);
                return Err(Fault::new(Status::OutOfMemory, sentence));
            }
        };
        let entry = &mut places.all[place];
        entry.value = Some(value);
        Ok((((entry.generation << PLACE_BITS) | place) << KIND_BITS) | self.kind)
    }

    /// The value of a handle.
    ///
    /// # Errors
    /// When the handle was closed, or is none of this table.
    pub fn get(&self, handle: usize) -> Result<Arc<T>> {
        let found = self.place(handle, &self.lock()).and_then(|place| place.value.clone());
        found.ok_or_else(|| self.unknown(handle))
    }

    /// Takes the value of a handle, which is invalid from then on.
    ///
    /// # Errors
    /// As [`Handles::get`].
    pub fn remove(&self, handle: usize) -> Result<Arc<T>> {
        let mut places = self.lock();
        let places = &mut *places;
        if self.place(handle, places).is_none() {
            return Err(self.unknown(handle));
        }
        let index = place_of(handle);
        let place = &mut places.all[index];
        let value = place.value.take().ok_or_else(|| self.unknown(handle))?;
        place.generation += 1;
        // After its last generation, a place is not used again.
        if place.generation >> GENERATION_BITS == 0 {
            places.free.push(index);
        }
        Ok(value)
    }

    /// The place whose present generation a handle names.
    fn place<'a>(&self, handle: usize, places: &'a HandlePlaces<T>) -> Option<&'a HandlePlace<T>> {
        let kind = handle & ((1 << KIND_BITS) - 1);
        let generation = handle >> (KIND_BITS + PLACE_BITS);
        places.all.get(place_of(handle)).filter(|place| kind == self.kind && place.generation == generation)
    }

    fn unknown(&self, handle: usize) -> Fault {
        match handle {
            0 => Fault::argument(format!("the {} is null: pass an open one", self.name)),
            _ => {
                let sentence = format!("the {} was closed, or is none: pass an open one", self.name);
                Fault::new(Status::InvalidHandle, sentence)
            }
        }
    }

    /// No code panics while it holds the lock, so a poisoned one has valid contents.
    fn lock(&self) -> MutexGuard<'_, HandlePlaces<T>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The place of a handle in its table.
fn place_of(handle: usize) -> usize {
    (handle >> KIND_BITS) & ((1 << PLACE_BITS) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_handle_is_refused_even_if_its_place_is_used_again() {
        let table = Handles::new("cat", 1);
        let first = table.insert(Arc::new(7)).unwrap();
        assert_eq!(*table.get(first).unwrap(), 7);
        assert_eq!(*table.remove(first).unwrap(), 7);
        let second = table.insert(Arc::new(8)).unwrap();
        assert_eq!(place_of(first), place_of(second));
        for fault in [table.get(first), table.remove(first)] {
            assert_eq!(fault.unwrap_err().status, Status::InvalidHandle);
        }
        assert_eq!(*table.get(second).unwrap(), 8);
    }

    #[test]
    fn a_number_that_is_no_handle_is_refused() {
        let (cats, dogs) = (Handles::new("cat", 1), Handles::new("dog", 2));
        let (cat, _) = (cats.insert(Arc::new(1)).unwrap(), dogs.insert(Arc::new(2)).unwrap());
        assert_eq!(dogs.get(cat).unwrap_err().status, Status::InvalidHandle);
        assert_eq!(cats.get(0).unwrap_err().status, Status::InvalidArgument);
        for number in [1 << KIND_BITS, usize::MAX, cat ^ (1 << KIND_BITS), cat.reverse_bits()] {
            assert_eq!(cats.get(number).unwrap_err().status, Status::InvalidHandle, "{number:#x}");
        }
    }

    #[test]
    fn a_place_is_given_up_after_its_last_generation() {
        let table = Handles::new("cat", 1);
        let handle = table.insert(Arc::new(1)).unwrap();
        table.remove(handle).unwrap();
        table.lock().all[0].generation = (1 << GENERATION_BITS) - 1;
        let last = table.insert(Arc::new(2)).unwrap();
        assert_eq!(*table.remove(last).unwrap(), 2);
        let next = table.insert(Arc::new(3)).unwrap();
        assert_eq!(place_of(next), 1);
        assert!(table.get(last).is_err() && table.get(handle).is_err());
    }
}
