//! What the runtime can do in one way or another. No choice changes a value;
//! what each of them costs, the ledger counts.

use girih_tensor::{Error, Result};

/// How buffer objects, lists and completion are used.
///
/// The default is what is fastest. Each other state is how a driver begins,
/// and what it costs is known by comparing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Runtime {
    /// How weights reach the array.
    pub weights: WeightUse,
    /// How values pass from one program to the next.
    pub values: ValueUse,
    /// How keys and values reach the array where it attends.
    pub keys: KeyUse,
    /// How command lists are written.
    pub lists: ListUse,
    /// What one call of the driver starts.
    pub dispatch: Dispatch,
    /// How the host learns that a list has ended.
    pub completion: Completion,
}

/// How weights reach the array.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WeightUse {
    /// They are read into the buffer objects in which they stay; the host has
    /// no copy of them.
    #[default]
    InPlace,
    /// The host reads them into memory of its own, where they stay, and copies
    /// them once to the buffer objects in which they stay.
    Copied,
    /// The host has them, and copies those of a layer with every submission.
    EachCall,
}

/// How values pass from one program to the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ValueUse {
    /// What one writes and another reads is one buffer object.
    #[default]
    Aliased,
    /// Each program has buffer objects of its own, and the host copies.
    Brokered,
}

/// How keys and values reach the array where it attends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeyUse {
    /// They stay in one object for each layer; what has changed is written.
    #[default]
    Kept,
    /// All of them are laid out anew for every program that reads them.
    Gathered,
}

/// How command lists are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ListUse {
    /// Once for each program; after that only addresses that have changed.
    #[default]
    Patched,
    /// Anew for every submission.
    Rebuilt,
}

/// What one call of the driver starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dispatch {
    /// All programs up to the next work of the host.
    #[default]
    Chained,
    /// One program.
    Single,
}

/// How the host learns that a list has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Completion {
    /// It sleeps until an interrupt comes.
    #[default]
    Interrupt,
    /// It looks again and again, and does nothing else.
    Polling,
}

impl Runtime {
    /// As the published Llama mapping of AMD's mlir-air works: weights are
    /// copied to buffer objects once and stay with the host, too; values go
    /// through the host; every program is a call.
    pub const MLIR_AIR: Runtime = Runtime {
        weights: WeightUse::Copied,
        values: ValueUse::Brokered,
        keys: KeyUse::Gathered,
        lists: ListUse::Patched,
        dispatch: Dispatch::Single,
        completion: Completion::Interrupt,
    };

    /// The same, but with the choice of this name, such as `values=brokered`.
    ///
    /// # Errors
    /// When there is no such choice.
    pub fn with(self, name: &str) -> Result<Runtime> {
        let choice = CHOICES.iter().find(|choice| choice.name == name);
        choice.map(|choice| (choice.make)(self)).ok_or_else(|| {
            let known: Vec<&str> = CHOICES.iter().map(|choice| choice.name).collect();
            Error::new(format!("'{name}' is no choice of the runtime: known are {}", known.join(", ")))
        })
    }

    /// Every single departure from `self`, by name.
    pub fn departures(self) -> Vec<(&'static str, Runtime)> {
        let all = CHOICES.iter().map(|choice| (choice.name, (choice.make)(self)));
        all.filter(|(_, other)| *other != self).collect()
    }
}

/// A choice by its name.
struct RuntimeChoice {
    name: &'static str,
    make: fn(Runtime) -> Runtime,
}

const CHOICES: &[RuntimeChoice] = &[
    RuntimeChoice { name: "weights=in-place", make: |it| Runtime { weights: WeightUse::InPlace, ..it } },
    RuntimeChoice { name: "weights=copied", make: |it| Runtime { weights: WeightUse::Copied, ..it } },
    RuntimeChoice { name: "weights=each-call", make: |it| Runtime { weights: WeightUse::EachCall, ..it } },
    RuntimeChoice { name: "values=aliased", make: |it| Runtime { values: ValueUse::Aliased, ..it } },
    RuntimeChoice { name: "values=brokered", make: |it| Runtime { values: ValueUse::Brokered, ..it } },
    RuntimeChoice { name: "keys=kept", make: |it| Runtime { keys: KeyUse::Kept, ..it } },
    RuntimeChoice { name: "keys=gathered", make: |it| Runtime { keys: KeyUse::Gathered, ..it } },
    RuntimeChoice { name: "lists=patched", make: |it| Runtime { lists: ListUse::Patched, ..it } },
    RuntimeChoice { name: "lists=rebuilt", make: |it| Runtime { lists: ListUse::Rebuilt, ..it } },
    RuntimeChoice { name: "dispatch=chained", make: |it| Runtime { dispatch: Dispatch::Chained, ..it } },
    RuntimeChoice { name: "dispatch=single", make: |it| Runtime { dispatch: Dispatch::Single, ..it } },
    RuntimeChoice {
        name: "completion=interrupt",
        make: |it| Runtime { completion: Completion::Interrupt, ..it },
    },
    RuntimeChoice {
        name: "completion=polling",
        make: |it| Runtime { completion: Completion::Polling, ..it },
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_have_names() {
        let brokered = Runtime::default().with("values=brokered").unwrap();
        assert_eq!(brokered, Runtime { values: ValueUse::Brokered, ..Runtime::default() });
        let back = brokered.with("values=aliased").unwrap();
        assert_eq!(back, Runtime::default());
        let names: Vec<&str> = Runtime::default().departures().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names.len(), 7, "{names:?}");
        assert!(!names.contains(&"weights=in-place"));
        let error = Runtime::default().with("values=lost").unwrap_err().to_string();
        assert!(error.contains("'values=lost' is no choice") && error.contains("lists=patched"), "{error}");
    }
}
