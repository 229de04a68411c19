// Command pointsman is a gateway that picks a model server for each LLM request. Run `pointsman --help`.
package main

import (
	"context"
	"io"
	"log"
	"os"

	"pointsman.dev/pointsman/internal/app"
)

func main() {
	log.SetOutput(io.Discard) // net/http writes to it what endpoints send unasked, which may be a piece of an answer
	os.Exit(app.Main(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
}
