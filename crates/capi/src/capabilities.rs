//! What the library has, as JSON.

use girih::{AllowedValues, BackendInfo, BackendOption, backends};
use serde_json::{Value, json};

/// Its version and that of its interface, and the backends with their options, the default first.
pub fn json(abi: u32) -> Value {
    let backends: Vec<Value> = backends().iter().map(|info| backend(info)).collect();
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "abi": abi,
        "default_threads": girih::default_threads(),
        "backends": backends,
    })
}

fn backend(info: &BackendInfo) -> Value {
    let options: Vec<Value> = info.options.iter().map(option).collect();
    json!({"name": info.name, "about": info.about, "simulated": info.is_simulated, "options": options})
}

fn option(option: &BackendOption) -> Value {
    let values = match &option.values {
        AllowedValues::OneOf(names) => json!(names()),
        _ => Value::Null,
    };
    json!({"name": option.name, "help": option.help, "values": values, "repeats": option.repeats})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_backend_is_first_and_has_its_options() {
        let json = json(1);
        assert_eq!(json["backends"][0]["name"], "cpu");
        let options = json["backends"][0]["options"].as_array().unwrap();
        let affinity = options.iter().find(|option| option["name"] == "affinity").unwrap();
        assert!(affinity["values"].as_array().unwrap().contains(&json!("compact")));
    }
}
