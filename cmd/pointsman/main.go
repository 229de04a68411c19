// Command pointsman is a gateway that picks a model server for each LLM request. Run `pointsman --help`.
package main

import (
	"context"
	"os"

	"pointsman.dev/pointsman/internal/app"
)

func main() {
	os.Exit(app.Main(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
}
