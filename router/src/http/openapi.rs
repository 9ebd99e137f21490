//! `/openapi.json`, made of the types that read and write. It must not know how they do.

use serde_json::{Map, Value, json};

use super::chat::ChatRequest;
use super::completion::CompletionRequest;
use super::error::ErrorReply;
use super::fields::request_schema;
use super::replies::{ChatChunk, ChatCompletion, TextCompletion};
use super::schema::Described;
use super::texts::{
    DetokenizeRequest, Detokenized, ModelCard, ModelList, TokenizeRequest, Tokenized,
};

/// Endpoints with a body: path, what it does, names of request and answer, whether it may be streamed, and
/// as what.
const POSTS: [(&str, &str, &str, &str, Option<&str>); 4] = [
    (
        "/v1/chat/completions",
        "Answer a chat.",
        "ChatRequest",
        "ChatCompletion",
        Some("ChatChunk"),
    ),
    (
        "/v1/completions",
        "Go on with texts.",
        "CompletionRequest",
        "TextCompletion",
        Some("TextCompletion"),
    ),
    (
        "/tokenize",
        "Token ids of a text or chat.",
        "TokenizeRequest",
        "Tokenized",
        None,
    ),
    (
        "/detokenize",
        "Text of token ids.",
        "DetokenizeRequest",
        "Detokenized",
        None,
    ),
];

/// The description of the API.
pub(super) fn document() -> Value {
    let mut paths = Map::new();
    for (path, words, request, answer, streamed) in POSTS {
        let mut content = Map::new();
        content.insert("application/json".to_owned(), named(answer));
        if let Some(piece) = streamed {
            content.insert("text/event-stream".to_owned(), named(piece));
        }
        let operation = json!({
            "summary": words,
            "requestBody": {"required": true, "content": {"application/json": named(request)}},
            "responses": {
                "200": {"description": "The answer.", "content": content},
                "default": failure(),
            },
        });
        paths.insert(path.to_owned(), json!({"post": operation}));
    }
    let list = json!({"200": {"description": "The models.", "content": {"application/json": named("ModelList")}}});
    paths.insert(
        "/v1/models".to_owned(),
        json!({"get": {"summary": "Models that are served.", "responses": list}}),
    );
    paths.insert("/v1/models/{model}".to_owned(), model_path());
    let health = json!({
        "200": {"description": "Requests can be answered."},
        "503": {"description": "Not now."},
    });
    paths.insert(
        "/health".to_owned(),
        json!({"get": {"summary": "Whether requests can be answered.", "security": [], "responses": health}}),
    );
    let live = json!({"200": {"description": "The process serves."}});
    paths.insert(
        "/health/live".to_owned(),
        json!({"get": {"summary": "Whether the process serves.", "security": [], "responses": live}}),
    );
    json!({
        "openapi": "3.1.0",
        "info": {"title": "Baton", "version": env!("CARGO_PKG_VERSION")},
        "paths": paths,
        "components": {
            "schemas": schemas(),
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}, {}],
    })
}

fn model_path() -> Value {
    json!({"get": {
        "summary": "One model.",
        "parameters": [{"name": "model", "in": "path", "required": true, "schema": {"type": "string"}}],
        "responses": {
            "200": {"description": "The model.", "content": {"application/json": named("ModelCard")}},
            "default": failure(),
        },
    }})
}

fn failure() -> Value {
    json!({"description": "Why there is no answer.", "content": {"application/json": named("ErrorReply")}})
}

fn named(schema: &str) -> Value {
    json!({"schema": {"$ref": format!("#/components/schemas/{schema}")}})
}

fn schemas() -> Value {
    json!({
        "ChatRequest": request_schema::<ChatRequest>(),
        "CompletionRequest": request_schema::<CompletionRequest>(),
        "TokenizeRequest": request_schema::<TokenizeRequest>(),
        "DetokenizeRequest": request_schema::<DetokenizeRequest>(),
        "ChatCompletion": ChatCompletion::schema(),
        "ChatChunk": ChatChunk::schema(),
        "TextCompletion": TextCompletion::schema(),
        "Tokenized": Tokenized::schema(),
        "Detokenized": Detokenized::schema(),
        "ModelList": ModelList::schema(),
        "ModelCard": ModelCard::schema(),
        "ErrorReply": ErrorReply::schema(),
    })
}
