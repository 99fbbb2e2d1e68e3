# Builds girih from its sources with Nix. It was parsed, and not built.
{
  description = "girih runs open-weight language models, with verified accuracy";

  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-unstable";

  outputs = { self, nixpkgs }:
    let
      systems = [ "x86_64-linux" "aarch64-linux" ];
      each = nixpkgs.lib.genAttrs systems;
    in {
      packages = each (system:
        let pkgs = nixpkgs.legacyPackages.${system};
        in {
          default = pkgs.rustPlatform.buildRustPackage {
            pname = "girih";
            version = "0.1.0";
            src = ./..;
            cargoLock.lockFile = ../Cargo.lock;
            cargoBuildFlags = [ "-p" "girih-cli" "--features" "gpu" ];
            # The tests take minutes and need a writable home.
            doCheck = false;
            nativeBuildInputs = [ pkgs.installShellFiles pkgs.makeWrapper ];
            postInstall = ''
              installShellCompletion --cmd girih \
                --bash <($out/bin/girih completions bash) \
                --zsh <($out/bin/girih completions zsh) \
                --fish <($out/bin/girih completions fish)
              $out/bin/girih man --output-folder man1
              installManPage man1/*
              wrapProgram $out/bin/girih --prefix LD_LIBRARY_PATH : ${pkgs.vulkan-loader}/lib
            '';
            meta = {
              license = pkgs.lib.licenses.asl20;
              mainProgram = "girih";
            };
          };
        });
      checks = self.packages;
    };
}
