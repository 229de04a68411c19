// Command vllmsim is a simulated vLLM server: see vllmsim --help.
package main

func main() {}
