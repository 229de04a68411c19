package shell

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSplit(t *testing.T) {
	for script, want := range map[string][]Word{
		"":                             nil,
		"a  b\tc\r\nd":                 {{"a", 1}, {"b", 1}, {"c", 1}, {"d", 2}},
		`--n="8" --l='4 k' "" x''y`:    {{"--n=8", 1}, {"--l=4 k", 1}, {"", 1}, {"xy", 1}},
		"a \\\n  --b \\\n\n c\\ d":     {{"a", 1}, {"--b", 2}, {"c d", 4}},
		"# no\na # b 'c\nd#e":          {{"a", 2}, {"d#e", 3}},
		"(a;b)|c&d&&e":                 {{"a", 1}, {"b", 1}, {"c", 1}, {"d", 1}, {"e", 1}},
		`sh -c "a 'b c' \"d\""`:        {{"sh", 1}, {"-c", 1}, {`a 'b c' "d"`, 1}},
		"'a\nb' c":                     {{"a\nb", 1}, {"c", 2}},
		`echo 'don't; a \`:             {{"echo", 1}, {"dont", 1}, {"a", 1}, {`\`, 1}},
		"'never ends; a":               {{"never ends; a", 1}},
		"export A=\"$B\" --c ${D:-1};": {{"export", 1}, {"A=$B", 1}, {"--c", 1}, {"${D:-1}", 1}},
	} {
		if diff := cmp.Diff(want, Split(script)); diff != "" {
			t.Errorf("%q (-want +got):\n%s", script, diff)
		}
	}
}
