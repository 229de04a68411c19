package telemetry

import (
	"bytes"
	"log/slog"
	"strconv"
	"strings"
	"testing"

	"pointsman.dev/pointsman/internal/prefix"
)

// chainOf cuts a prompt as the gateway does.
func chainOf(text string) []prefix.Block {
	var h prefix.Hasher
	h.Write([]byte(text))
	return h.Blocks(1, nil)
}

// Prompts that begin alike have the same first pieces under one salt, and none in common under another; lengths add up; there is
// one piece per 2 KiB; without a salt the record says nothing.
func TestPieces(t *testing.T) {
	salt, err := NewSalt()
	if err != nil {
		t.Fatal(err)
	}
	other, err := NewSalt()
	if err != nil {
		t.Fatal(err)
	}
	shared := strings.Repeat("shared text ", 500) // 6,000 bytes
	a, b := strings.Fields(salt.pieces(chainOf(shared+"and mine"))), strings.Fields(salt.pieces(chainOf(shared+strings.Repeat("and yours ", 300))))
	if len(a) != 3 || len(b) != 5 || a[0] != b[0] || a[1] != b[1] || a[2] == b[2] {
		t.Errorf("%q\n%q", a, b)
	}
	if !strings.HasSuffix(a[0], ":2048") || !strings.HasSuffix(a[2], ":1912") {
		t.Errorf("lengths: %q", a)
	}
	if c := strings.Fields(other.pieces(chainOf(shared + "and mine"))); c[0] == a[0] {
		t.Error("two salts give the same names")
	}
	for _, n := range []int{0, 1, 255, 256, 2047, 2048, 2049, 5000} {
		sum := 0
		for _, p := range strings.Fields(salt.pieces(chainOf(strings.Repeat("x", n)))) {
			_, size, _ := strings.Cut(p, ":")
			v, err := strconv.Atoi(size)
			if err != nil {
				t.Fatal(err)
			}
			sum += v
		}
		if sum != n {
			t.Errorf("%d bytes: the pieces have %d", n, sum)
		}
	}
	var out bytes.Buffer
	log := slog.New(slog.NewJSONHandler(&out, nil))
	rec := &Record{ID: "x", Outcome: OutcomeOK, CachedTokens: -1, Blocks: chainOf(shared)}
	NewAccess(log).Log(rec)
	if strings.Contains(out.String(), "prefix") {
		t.Errorf("without a salt: %s", out.String())
	}
	NewAccess(log).WithPrefixes(salt).Log(rec)
	if !strings.Contains(out.String(), `"prefix":"`+salt.pieces(rec.Blocks)) || strings.Contains(out.String(), "shared") {
		t.Errorf("%s", out.String())
	}
}
