//! Makes tonic's client and server. The service is described here and not in a `.proto` file, so that nobody
//! needs `protoc`; what comes out is the same.

use tonic_build::manual::{Builder, Method, Service};

fn main() {
    let method = |name: &str, route: &str, input: &str, output: &str| {
        Method::builder()
            .name(name)
            .route_name(route)
            .input_type(format!("super::{input}"))
            .output_type(format!("super::{output}"))
            .codec_path("tonic_prost::ProstCodec")
            .build()
    };
    let service = Service::builder()
        .package("peers")
        .name("Calls")
        .method(method("nothing", "Nothing", "Nothing", "Nothing"))
        .method(method("swallow", "Swallow", "Bulk", "Length"))
        .build();
    Builder::new().compile(&[service]);
    println!("cargo::rerun-if-changed=build.rs");
}
