//! The choices of the runtime. None of them changes a value; the ledger counts
//! what each of them costs.

use girih_tensor::{Error, ErrorKind, Result};

/// How the runtime uses buffer objects, lists and completion.
///
/// The defaults are the fastest choices. The others are what simple drivers do;
/// comparing them shows their cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Runtime {
    /// How weights reach the array.
    pub weights: WeightUse,
    /// How values pass from one program to the next.
    pub values: ValueUse,
    /// How keys and values reach the array for attention.
    pub keys: KeyUse,
    /// How command lists are written.
    pub lists: ListUse,
    /// What one driver call starts.
    pub dispatch: Dispatch,
    /// How the host detects the end of a list.
    pub completion: Completion,
}

/// How weights reach the array.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WeightUse {
    /// Weights are read directly into resident buffer objects; the host has no
    /// copy.
    #[default]
    InPlace,
    /// The host reads weights into its own memory, keeps them, and copies them
    /// once to resident buffer objects.
    Copied,
    /// The host keeps the weights and copies those of a layer with every
    /// submission.
    EachCall,
}

/// How values pass from one program to the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ValueUse {
    /// Writer and reader share one buffer object.
    #[default]
    Aliased,
    /// Each program has its own buffer objects, and the host copies.
    Brokered,
}

/// How keys and values reach the array for attention.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeyUse {
    /// They are resident in one object per layer; only changed blocks are
    /// written.
    #[default]
    Kept,
    /// The host writes all of them again for every program that reads them.
    Gathered,
}

/// How command lists are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ListUse {
    /// Once per program; after that, only changed addresses are patched.
    #[default]
    Patched,
    /// Again for every submission.
    Rebuilt,
}

/// What one driver call starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dispatch {
    /// All programs until the next host work.
    #[default]
    Chained,
    /// One program.
    Single,
}

/// How the host detects the end of a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Completion {
    /// It sleeps until an interrupt.
    #[default]
    Interrupt,
    /// It polls and does nothing else.
    Polling,
}

impl Runtime {
    /// The published Llama mapping of AMD's mlir-air: weights are copied to
    /// buffer objects once and also stay on the host, values go through the
    /// host, and every program is a driver call.
    pub const MLIR_AIR: Runtime = Runtime {
        weights: WeightUse::Copied,
        values: ValueUse::Brokered,
        keys: KeyUse::Gathered,
        lists: ListUse::Patched,
        dispatch: Dispatch::Single,
        completion: Completion::Interrupt,
    };

    /// The names of all choices, such as `values=brokered`.
    pub fn choices() -> Vec<&'static str> {
        CHOICES.iter().map(|choice| choice.name).collect()
    }

    /// Applies the choice of this name, such as `values=brokered`.
    ///
    /// # Errors
    /// When the choice does not exist.
    pub fn with(self, name: &str) -> Result<Runtime> {
        let choice = CHOICES.iter().find(|choice| choice.name == name);
        choice.map(|choice| (choice.make)(self)).ok_or_else(|| {
            let known = Runtime::choices().join(", ");
            Error::with_kind(
                ErrorKind::Refused,
                format!("unknown runtime choice '{name}': known are {known}"),
            )
        })
    }

    /// All variants that differ from `self` in one choice, by name.
    pub fn departures(self) -> Vec<(&'static str, Runtime)> {
        let all = CHOICES.iter().map(|choice| (choice.name, (choice.make)(self)));
        all.filter(|(_, other)| *other != self).collect()
    }
}

/// A named choice.
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
        assert!(
            error.contains("unknown runtime choice 'values=lost'") && error.contains("lists=patched"),
            "{error}"
        );
    }
}
