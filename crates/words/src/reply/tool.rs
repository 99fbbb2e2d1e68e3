//! The tools that a model may call, in the form of OpenAI's API.

use std::collections::HashSet;

use girih_file::quote;
use girih_tensor::{Error, ErrorKind, Result};
use serde_json::{Map, Value};

use super::object::is_name;

/// The maximum number of tools of a conversation.
const MAX_TOOLS: usize = 128;

/// A tool that a model may call.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    /// Its name: 1 to 128 ASCII letters, digits and `_ - . : /`.
    pub name: String,
    /// The JSON schema of its arguments, an object.
    pub parameters: Map<String, Value>,
}

impl Tool {
    /// Reads a list of tools such as `[{"type": "function", "function": {"name": …, "description": …,
    /// "parameters": {…}}}]`. A tool without `parameters` takes no arguments.
    ///
    /// # Errors
    /// [`ErrorKind::Refused`] if an entry has another form, if two have one name, or if there are more
    /// than 128.
    pub fn list(tools: &[Value]) -> Result<Vec<Tool>> {
        let refused = |sentence: String| Error::with_kind(ErrorKind::Refused, sentence);
        if tools.len() > MAX_TOOLS {
            return Err(refused(format!("there are {} tools; the maximum is {MAX_TOOLS}", tools.len())));
        }
        let mut names = HashSet::new();
        let mut list = Vec::with_capacity(tools.len());
        for (number, tool) in (1..).zip(tools) {
            let tool = Tool::of(tool).map_err(|clause| refused(format!("tool {number} {clause}")))?;
            if !names.insert(tool.name.clone()) {
                return Err(refused(format!("two tools have the name {}", quote(&tool.name))));
            }
            list.push(tool);
        }
        Ok(list)
    }

    fn of(tool: &Value) -> std::result::Result<Tool, String> {
        let function = tool.get("function").and_then(Value::as_object);
        let function = function.filter(|_| tool["type"] == "function").ok_or(
            "is not {\"type\": \"function\", \"function\": {\"name\": …, \"parameters\": {…}}}".to_owned(),
        )?;
        let name = function.get("name").and_then(Value::as_str).ok_or("has no name".to_owned())?;
        if !is_name(name) {
            let name = quote(name);
            return Err(format!("has the name {name}; allowed are 1 to 128 letters, digits and _ - . : /"));
        }
        let parameters = match function.get("parameters") {
            None | Some(Value::Null) => no_parameters(),
            Some(Value::Object(schema)) => schema.clone(),
            Some(_) => return Err(format!("({}) has parameters that are not an object", quote(name))),
        };
        Ok(Tool { name: name.to_owned(), parameters })
    }
}

/// The schema of arguments that are empty.
fn no_parameters() -> Map<String, Value> {
    let none = [("type", Value::from("object")), ("properties", Map::new().into())];
    let closed = ("additionalProperties", Value::Bool(false));
    none.into_iter().chain([closed]).map(|(key, value)| (key.to_owned(), value)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tools_are_read_and_other_forms_are_refused() {
        let tool = |function: Value| json!({"type": "function", "function": function});
        let schema = json!({"type": "object", "properties": {"a": {"type": "string"}}});
        let tools = [tool(json!({"name": "f", "parameters": schema})), tool(json!({"name": "g"}))];
        let list = Tool::list(&tools).unwrap();
        assert_eq!((list[0].name.as_str(), Value::Object(list[0].parameters.clone())), ("f", schema));
        assert_eq!(list[1].parameters["additionalProperties"], json!(false));
        let refusal = |tools: &[Value]| Tool::list(tools).unwrap_err().to_string();
        assert!(refusal(&[json!({"name": "f"})]).starts_with("tool 1 is not {\"type\": \"function\""));
        assert_eq!(refusal(&[tool(json!({}))]), "tool 1 has no name");
        assert!(
            refusal(&[tool(json!({"name": "a b"}))]).starts_with("tool 1 has the name 'a b'; allowed are")
        );
        assert!(
            refusal(&[tool(json!({"name": "f", "parameters": []}))]).contains("('f') has parameters that")
        );
        assert_eq!(refusal(&[tools[1].clone(), tools[1].clone()]), "two tools have the name 'g'");
        assert_eq!(refusal(&vec![json!({}); 129]), "there are 129 tools; the maximum is 128");
    }
}
