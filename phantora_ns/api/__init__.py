"""What `import phantora_ns` offers. The public names are those of the package itself."""
