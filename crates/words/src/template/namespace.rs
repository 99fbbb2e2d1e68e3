//! `namespace` for templates that are rendered in this process: values set later
//! cannot contain a namespace, and their nesting has a limit.
//!
//! minijinja's own namespace may contain itself. Printing it then never ends.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use minijinja::value::{Enumerator, Object, ValueKind, ValueOrKwargs, from_args};
use minijinja::{Error, ErrorKind, State, Value};

/// The method that sets an attribute.
pub const SET_METHOD: &str = "__set__";

/// The maximum nesting of an attribute's value. Values of a conversation nest up to
/// 100 levels.
pub const MAX_NAMESPACE_LEVELS: usize = 128;

/// The maximum number of lists, objects and items that are checked per assignment.
const MAX_CHECKED: usize = 1 << 20;

/// An object with attributes that a template may set.
#[derive(Debug, Default)]
pub struct CheckedNamespace {
    attributes: Mutex<BTreeMap<Arc<str>, Value>>,
}

impl CheckedNamespace {
    fn set(&self, name: &str, value: Value) {
        // A panic elsewhere leaves the map whole.
        self.attributes.lock().unwrap_or_else(PoisonError::into_inner).insert(name.into(), value);
    }
}

impl Object for CheckedNamespace {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let attributes = self.attributes.lock().unwrap_or_else(PoisonError::into_inner);
        attributes.get(key.as_str()?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        let attributes = self.attributes.lock().unwrap_or_else(PoisonError::into_inner);
        Enumerator::Values(attributes.keys().cloned().map(Value::from).collect())
    }

    fn call_method(
        self: &Arc<Self>,
        _: &mut State<'_, '_>,
        method: &str,
        arguments: &[Value],
    ) -> Result<Value, Error> {
        if method != SET_METHOD {
            return Err(Error::from(ErrorKind::UnknownMethod));
        }
        let (name, value): (&str, Value) = from_args(arguments)?;
        check(&value, MAX_NAMESPACE_LEVELS, &mut { MAX_CHECKED })?;
        self.set(name, value);
        Ok(Value::UNDEFINED)
    }
}

/// `namespace(a=1)` or `namespace({'a': 1})`.
pub fn namespace(attributes: Option<ValueOrKwargs>) -> Result<Value, Error> {
    let namespace = CheckedNamespace::default();
    if let Some(attributes) = attributes.map(ValueOrKwargs::into_value) {
        if attributes.kind() != ValueKind::Map {
            return Err(invalid(&format!("expected object or keyword arguments, got {}", attributes.kind())));
        }
        for key in attributes.try_iter()? {
            if let Some(name) = key.as_str() {
                namespace.set(name, attributes.get_item(&key)?);
            }
        }
    }
    Ok(Value::from_object(namespace))
}

/// Checks that a value is data, nests at most `levels` deep, and contains no
/// namespace. `left` counts the values that may still be checked.
fn check(value: &Value, levels: usize, left: &mut usize) -> Result<(), Error> {
    use ValueKind::{Invalid, Iterable, Map, Plain, Seq};
    *left = left.checked_sub(1).ok_or_else(|| invalid("an attribute of a namespace is too large"))?;
    let kind = value.kind();
    if !matches!(kind, Invalid | Iterable | Map | Plain | Seq) {
        return Ok(());
    }
    if is_mutable(value) || matches!(kind, Invalid | Plain) {
        return Err(invalid("an attribute of a namespace may contain only data"));
    }
    let levels =
        levels.checked_sub(1).ok_or_else(|| invalid("an attribute of a namespace nests too deeply"))?;
    for item in value.try_iter()? {
        if kind == Map {
            check(&value.get_item(&item)?, levels, left)?;
        }
        check(&item, levels, left)?;
    }
    Ok(())
}

/// Whether the contents of an object may still change: those of a namespace and of
/// `loop`, whose type minijinja does not publish.
fn is_mutable(value: &Value) -> bool {
    value.as_object().is_some_and(|object| {
        object.downcast_ref::<CheckedNamespace>().is_some() || object.type_name().ends_with("::Loop")
    })
}

fn invalid(sentence: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, sentence.to_owned())
}
