# A formula of Homebrew that builds girih from its sources. It was parsed, and not run: `url` and `sha256` are those of a release.
class Girih < Formula
  desc "Runs open-weight language models, with verified accuracy"
  homepage "https://example.org/girih"
  url "https://example.org/girih-0.1.0.tar.gz"
  sha256 "0000000000000000000000000000000000000000000000000000000000000000"
  license "Apache-2.0"
  head "https://example.org/girih.git", branch: "main"

  depends_on "rust" => :build
  # macOS is untested.
  depends_on :linux

  def install
    system "cargo", "install", "--features", "gpu", *std_cargo_args(path: "crates/cli")
    generate_completions_from_executable(bin/"girih", "completions", shells: [:bash, :zsh, :fish])
    system bin/"girih", "man", "--output-folder", man1
  end

  service do
    run [opt_bin/"girih", "serve", "--models", var/"girih/models"]
    keep_alive crashed: true
    log_path var/"log/girih.log"
    error_log_path var/"log/girih.log"
  end

  test do
    assert_match(/\w/, shell_output("#{bin}/girih run -q -n 8"))
  end
end
