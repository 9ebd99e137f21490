//! Compiles the `.proto` files without `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = ["common", "inference", "admin", "worker"]
        .map(|name| format!("proto/baton/v1/{name}.proto"));
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(&files, ["proto"])?;
    let path = std::path::PathBuf::from(std::env::var("OUT_DIR")?).join("baton_descriptor.bin");
    std::fs::write(&path, prost::Message::encode_to_vec(&descriptors))?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    Ok(())
}
