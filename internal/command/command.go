// Package command runs the command that the first argument names, and lists those that there are. It knows none of them.
package command

import (
	"context"
	"fmt"
	"io"

	"pointsman.dev/pointsman/internal/spelling"
)

// Command is one word of a command line.
type Command struct {
	Name string
	Args string // as the list shows them
	Help string // one line
	// Run gets the arguments behind the word and returns an exit code: 0 for success, 1 for a fault, 2 for wrong usage.
	Run func(ctx context.Context, args []string, stdout, stderr io.Writer) int
}

// Set is the commands of one program, or of one of its commands.
type Set struct {
	Program  string // all words before: "pointsman sim"
	About    string // a paragraph above the list
	Commands []Command
	More     string // below the list; may be empty
}

// Main runs the command named by args[0] and returns its exit code. Without one it prints the list to stderr and returns 2.
func (s *Set) Main(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		s.usage(stderr)
		return 2
	}
	switch args[0] {
	case "help", "-h", "-help", "--help":
		s.usage(stdout)
		return 0
	}
	names := make([]string, len(s.Commands))
	for i, c := range s.Commands {
		if c.Name == args[0] {
			return c.Run(ctx, args[1:], stdout, stderr)
		}
		names[i] = c.Name
	}
	fmt.Fprintf(stderr, "%s: there is no command %q", s.Program, args[0])
	if near := spelling.Name(args[0], names); near != "" {
		fmt.Fprintf(stderr, "; did you mean %q?", near)
	}
	fmt.Fprintf(stderr, "\nRun `%s --help` for the list.\n", s.Program)
	return 2
}

// usage prints the list, in columns as wide as they have to be.
func (s *Set) usage(w io.Writer) {
	name, args := 0, 0
	for _, c := range s.Commands {
		name, args = max(name, len(c.Name)), max(args, len(c.Args))
	}
	fmt.Fprintf(w, "%s\n\nUsage:\n", s.About)
	for _, c := range s.Commands {
		fmt.Fprintf(w, "  %s %-*s %-*s  %s\n", s.Program, name, c.Name, args, c.Args, c.Help)
	}
	if s.More != "" {
		fmt.Fprintf(w, "\n%s\n", s.More)
	}
}

// Plural is a number of things, "1 endpoint" or "3 endpoints".
func Plural(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
