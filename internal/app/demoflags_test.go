package app

import (
	"bytes"
	"strings"
	"testing"
)

// A wrong flag of the demo is named, with what may stand there.
func TestDemoFlags(t *testing.T) {
	for arg, want := range map[string]string{"--endpoints=99": "1 to 32", "--chats=-1": "0 to 1000", "--duration=-1s": "negative", "now": `"now"`} {
		var errs bytes.Buffer
		if code := Demo(t.Context(), []string{arg}, &errs, &errs); code != 2 || !strings.Contains(errs.String(), want) || strings.Count(errs.String(), "\n") != 1 {
			t.Errorf("%s: code %d: %s", arg, code, errs.String())
		}
	}
}
