//! The calls of tools in a conversation: each result follows a call.

use serde_json::Value;

use crate::error::ApiError;

/// The calls of the messages so far.
#[derive(Debug, Default)]
pub struct CallsSoFar {
    calls: Vec<EarlierCall>,
    /// The number of calls to which girih gave an id.
    numbered: usize,
}

/// A call of an earlier message.
#[derive(Debug)]
struct EarlierCall {
    id: String,
    name: String,
    /// Whether its result has come.
    has_result: bool,
}

impl CallsSoFar {
    /// Reads the next message in the form of chat templates. A call of a client that has no ids, as `has_no_ids` says,
    /// gets one, and so does its result.
    ///
    /// # Errors
    /// When the message is a result without its call.
    pub fn follow(&mut self, param: &str, has_no_ids: bool, message: &mut Value) -> Result<(), ApiError> {
        if message["role"] == "tool" {
            return self.result(param, has_no_ids, message);
        }
        for call in message.get_mut("tool_calls").and_then(Value::as_array_mut).into_iter().flatten() {
            let name = call["function"]["name"].as_str().unwrap_or_default().to_owned();
            if call.get("id").is_none() {
                // Chat templates of Mistral take ids of nine letters only.
                call["id"] = format!("call{:05}", self.numbered % 100_000).into();
                self.numbered += 1;
            }
            let id = call["id"].as_str().unwrap_or_default().to_owned();
            self.calls.push(EarlierCall { id, name, has_result: false });
        }
        Ok(())
    }

    fn result(&mut self, param: &str, has_no_ids: bool, message: &mut Value) -> Result<(), ApiError> {
        let wrong = |field: &str, sentence: &str| {
            let param = format!("{param}.{field}");
            let message = format!("{param} {sentence}");
            Err(ApiError::invalid(param, message))
        };
        if self.calls.is_empty() {
            return wrong("role", "is that of a result, but no message before it has a call");
        }
        if let Some(id) = message.get("tool_call_id").and_then(Value::as_str) {
            let Some(call) = self.calls.iter_mut().rfind(|call| call.id == id) else {
                return wrong("tool_call_id", "names no call of a message before it");
            };
            call.has_result = true;
            return Ok(());
        }
        let name = message.get("name").and_then(Value::as_str).unwrap_or_default();
        let waiting = self.calls.iter().position(|call| call.name == name && !call.has_result);
        let index = waiting.or_else(|| self.calls.iter().rposition(|call| call.name == name));
        match index.map(|index| &mut self.calls[index]) {
            None if has_no_ids => wrong("name", "names no function that a message before it calls"),
            None => Ok(()),
            Some(call) => {
                call.has_result = true;
                message["tool_call_id"] = call.id.as_str().into();
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn followed(has_no_ids: bool, messages: Value) -> Result<Value, (String, String)> {
        let mut calls = CallsSoFar::default();
        let Value::Array(mut messages) = messages else { panic!("no list") };
        for (index, message) in messages.iter_mut().enumerate() {
            let followed = calls.follow(&format!("messages[{index}]"), has_no_ids, message);
            followed.map_err(|error| (error.param.unwrap_or_default().to_string(), error.message))?;
        }
        Ok(Value::Array(messages))
    }

    #[test]
    fn a_result_follows_its_call() {
        let call = |id: Value| json!({"role": "assistant", "tool_calls": [{"id": id, "function": {"name": "look"}}]});
        let result = json!({"role": "tool", "tool_call_id": "c1"});
        let known = json!([call(json!("c1")), result]);
        assert_eq!(followed(false, known.clone()), Ok(known));
        let param = |messages: Value| followed(false, messages).unwrap_err().0;
        assert_eq!(param(json!([result])), "messages[0].role");
        assert_eq!(param(json!([call(json!("c2")), result])), "messages[1].tool_call_id");
        // Results that name their tool only belong to its calls in order.
        let named = json!({"role": "tool", "name": "look"});
        let both = followed(false, json!([call(json!("c1")), call(json!("c2")), named, named])).unwrap();
        assert_eq!((&both[2]["tool_call_id"], &both[3]["tool_call_id"]), (&json!("c1"), &json!("c2")));
    }

    #[test]
    fn calls_without_ids_get_some() {
        let call = json!({"role": "assistant", "tool_calls": [{"function": {"name": "look"}}]});
        let result = |name: &str| json!({"role": "tool", "name": name});
        let written = followed(true, json!([call, result("look"), call, result("look")])).unwrap();
        assert_eq!(
            (&written[0]["tool_calls"][0]["id"], &written[1]["tool_call_id"]),
            (&json!("call00000"), &json!("call00000"))
        );
        assert_eq!(written[3]["tool_call_id"], "call00001");
        let (param, message) = followed(true, json!([call, result("see")])).unwrap_err();
        assert_eq!((&*param, message.contains("names no function")), ("messages[1].name", true));
    }
}
