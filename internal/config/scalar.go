package config

import (
	"fmt"
	"math"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// toDefault is the suggestion where there is nothing better to say about an optional key.
const toDefault = "remove the key to get its default"

// Readers of single values. Each either stores a valid value or records what is wrong and leaves dst alone.

// wrongKind records that v is not what a key takes.
func (d *decoder) wrongKind(v value, want string) {
	hint := "give it " + want
	if _, example, ok := strings.Cut(want, " like "); ok {
		hint = "write " + example
	}
	switch {
	case v.kind == kindAlias:
		hint = aliasHint
	case v.kind == kindOther:
		hint = "remove the tag"
	case strings.HasPrefix(want, "text") && (v.kind == kindInt || v.kind == kindFloat || v.kind == kindBool):
		hint = fmt.Sprintf("put it in quotes: %q", v.text)
	case strings.HasPrefix(want, "a list") && v.kind <= kindBool:
		hint = "put it in brackets: [ ... ]"
	case strings.HasPrefix(want, "a list") && v.kind == kindMap:
		hint = "start each entry with a dash: - name: ..."
	}
	d.fail(v, fmt.Sprintf("is %s, want %s", v.kind, want), hint)
}

// str stores a text that is not empty and has no control characters.
func (d *decoder) str(v value, dst *string) bool {
	switch {
	case v.kind != kindText:
		d.wrongKind(v, "text")
	case strings.TrimSpace(v.text) == "":
		d.fail(v, "is empty", "give it a value, or remove the key")
	case strings.TrimSpace(v.text) != v.text:
		d.fail(v, "has white space around it", fmt.Sprintf("write %q", clip(strings.TrimSpace(v.text))))
	case strings.ContainsFunc(v.text, func(r rune) bool { return r < ' ' || r == 0x7f }):
		d.fail(v, "has control characters in it", "remove them")
	default:
		*dst = v.text
		return true
	}
	return false
}

// oneOf returns the index of v among words.
func (d *decoder) oneOf(v value, words []string) (int, bool) {
	for i, w := range words {
		if v.kind == kindText && v.text == w {
			return i, true
		}
	}
	hint := toDefault
	if near := Closest(v.text, words); near != "" {
		hint = "did you mean " + near + "?"
	} else if near := otherValues()[normal(v.text)]; slices.Contains(words, near) {
		hint = "did you mean " + near + "?"
	}
	d.fail(v, "want one of "+strings.Join(words, ", "), hint)
	return 0, false
}

// boolean stores true or false.
func (d *decoder) boolean(v value, dst *bool) {
	if v.kind == kindBool {
		*dst = v.text == "true" || v.text == "True" || v.text == "TRUE"
		return
	}
	hint := toDefault
	switch strings.ToLower(v.text) {
	case "yes", "on", "1", "true", "y":
		hint = "write true"
	case "no", "off", "0", "false", "n":
		hint = "write false"
	}
	d.fail(v, "want true or false", hint)
}

// integer stores a whole number in [lo,hi].
func (d *decoder) integer(v value, dst *int, lo, hi int) {
	n, err := strconv.ParseInt(strings.ReplaceAll(v.text, "_", ""), 0, 64)
	switch {
	case v.kind == kindText && err == nil:
		d.fail(v, "is text, want a whole number", "remove the quotes: "+v.text)
	case v.kind != kindInt:
		hint := toDefault
		if v.kind == kindText && strings.ContainsAny(v.text, "kKmM") && strings.ContainsAny(v.text, "123456789") {
			hint = "write the number out, like 16384"
		}
		d.fail(v, fmt.Sprintf("want a whole number from %d to %d", lo, hi), hint)
	case err != nil || n > int64(hi):
		d.fail(v, fmt.Sprintf("must be at most %d", hi), toDefault)
	case n < int64(lo):
		d.fail(v, fmt.Sprintf("must be at least %d", lo), toDefault)
	default:
		*dst = int(n)
	}
}

// share stores a number in (0,1].
func (d *decoder) share(v value, dst *float64) {
	const rule = "want a share above 0 and up to 1"
	text, percent := strings.CutSuffix(v.text, "%")
	n, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
	number := err == nil && !math.IsNaN(n) && !math.IsInf(n, 0)
	switch {
	case v.kind > kindFloat || !number:
		d.fail(v, rule, "0.95 is 95 %")
	case v.kind == kindText && percent, n > 1 && n <= 100:
		d.fail(v, rule, "write "+strconv.FormatFloat(n/100, 'g', 6, 64))
	case v.kind == kindText:
		d.fail(v, "is text, want a number", "remove the quotes: "+v.text)
	case n <= 0 || n > 1:
		d.fail(v, rule, "0.95 is 95 %")
	default:
		*dst = n
	}
}

// duration stores a duration in [lo,hi].
func (d *decoder) duration(v value, dst *time.Duration, lo, hi time.Duration) {
	n, err := time.ParseDuration(v.text)
	switch {
	case v.kind == kindInt && err == nil && n == 0:
		d.fail(v, "must be at least "+shortDuration(lo), toDefault)
	case v.kind == kindInt || v.kind == kindFloat:
		d.fail(v, "a duration needs a unit: h, m, s or ms", "write "+v.text+"s or "+v.text+"m")
	case v.kind != kindText:
		d.wrongKind(v, "a duration like 60m")
	case err != nil:
		d.fail(v, "want a duration with the units h, m, s, ms, like 60m or 1h30m", durationHint(v.text))
	case n < lo:
		d.fail(v, "must be at least "+shortDuration(lo), toDefault)
	case n > hi:
		d.fail(v, "must be at most "+shortDuration(hi), toDefault)
	default:
		*dst = n
	}
}

// pause stores a duration that is 0 or in [lo,hi]; a plain 0 needs no unit.
func (d *decoder) pause(v value, dst *time.Duration, lo, hi time.Duration) {
	if n, err := time.ParseDuration(v.text); (v.kind == kindInt || v.kind == kindText) && err == nil && n == 0 {
		*dst = 0
		return
	}
	n, err := time.ParseDuration(v.text)
	switch {
	case v.kind == kindText && err == nil && n < 0:
		d.fail(v, "must not be negative", toDefault)
	case v.kind == kindText && err == nil && n < lo:
		d.fail(v, "must be 0 or at least "+shortDuration(lo), toDefault)
	case v.kind == kindText && (v.text == "off" || v.text == "none"), v.kind == kindBool:
		d.fail(v, "want a duration with the units h, m, s, ms", "write 0 for none")
	default:
		d.duration(v, dst, lo, hi)
	}
}

// durationHint translates what people write for a duration into what is read here.
func durationHint(text string) string {
	compact := strings.ToLower(strings.ReplaceAll(text, " ", ""))
	digits := strings.TrimRight(compact, "abcdefghijklmnopqrstuvwxyz")
	n, err := strconv.Atoi(digits)
	if err != nil || n < 0 || n > 1e6 {
		return toDefault
	}
	switch compact[len(digits):] {
	case "d", "day", "days":
		return fmt.Sprintf("write %dh", 24*n)
	case "h", "hr", "hrs", "hour", "hours":
		return fmt.Sprintf("write %dh", n)
	case "m", "min", "mins", "minute", "minutes":
		return fmt.Sprintf("write %dm", n)
	case "s", "sec", "secs", "second", "seconds":
		return fmt.Sprintf("write %ds", n)
	case "w", "week", "weeks":
		return fmt.Sprintf("write %dh", 7*24*n)
	}
	return toDefault
}

// sizeUnits are the units of a size, the longest first, so that B does not match the end of KiB.
func sizeUnits() []struct {
	name  string
	bytes int64
} {
	return []struct {
		name  string
		bytes int64
	}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"B", 1}}
}

// size stores a number of bytes in [lo,hi]; a plain number is bytes.
func (d *decoder) size(v value, dst *int64, lo, hi int64) {
	if v.kind > kindFloat {
		d.wrongKind(v, "a size like 64MiB")
		return
	}
	n, ok := parseSize(v.text)
	switch {
	case !ok:
		d.fail(v, "want a size in B, KiB, MiB or GiB, like 64MiB", sizeHint(v.text))
	case n < lo:
		hint := toDefault
		if v.kind == kindInt && n > 0 {
			hint = "a number without a unit is bytes: write " + v.text + "MiB?"
		}
		d.fail(v, "must be at least "+shortSize(lo), hint)
	case n > hi:
		d.fail(v, "must be at most "+shortSize(hi), toDefault)
	default:
		*dst = n
	}
}

func parseSize(text string) (int64, bool) {
	unit := int64(1)
	for _, u := range sizeUnits() {
		if rest, ok := strings.CutSuffix(text, u.name); ok {
			text, unit = strings.TrimSpace(rest), u.bytes
			break
		}
	}
	if text == "" || strings.Trim(text, "0123456789_.") != "" {
		return 0, false
	}
	f, err := strconv.ParseFloat(strings.ReplaceAll(text, "_", ""), 64)
	if err != nil || f*float64(unit) > 1<<60 {
		return 0, false
	}
	return int64(f * float64(unit)), true
}

// sizeHint translates the other spellings of units.
func sizeHint(text string) string {
	compact := strings.ToLower(strings.ReplaceAll(text, " ", ""))
	digits := strings.TrimRight(compact, "abcdefghijklmnopqrstuvwxyz")
	if _, ok := parseSize(digits); !ok {
		return toDefault
	}
	switch compact[len(digits):] {
	case "k", "kb", "kib", "ki":
		return "write " + digits + "KiB"
	case "m", "mb", "mib", "mi", "meg":
		return "write " + digits + "MiB"
	case "g", "gb", "gib", "gi":
		return "write " + digits + "GiB"
	}
	return toDefault
}

// address stores a listening address, host:port.
func (d *decoder) address(v value, dst *string) {
	switch {
	case v.kind == kindInt:
		d.fail(v, "want an address, host:port", "write "+usualHost(v)+":"+v.text)
		return
	case v.kind != kindText:
		d.wrongKind(v, "an address like 0.0.0.0:8080")
		return
	}
	if scheme, rest, ok := strings.Cut(v.text, "://"); ok {
		d.failShowing(v, redactURL(v.text), "want an address, host:port, without "+clip(printable(scheme))+"://", addressHint(v, rest))
		return
	}
	host, port, err := net.SplitHostPort(v.text)
	if err != nil {
		d.fail(v, "want an address, host:port", addressHint(v, v.text))
		return
	}
	if !validHost(host) && host != "" {
		d.fail(v, "the host is neither an IP address nor a name", "use 0.0.0.0 for every interface, 127.0.0.1 for this machine only")
		return
	}
	if rule := portRule(port, 0); rule != "" {
		d.fail(v, rule, "like 8080; 0 takes a free one")
		return
	}
	*dst = v.text
}

// addressHint guesses the address that was meant.
func addressHint(v value, text string) string {
	text = strings.TrimRight(text, "/")
	if portRule(text, 0) == "" {
		return "write " + usualHost(v) + ":" + text
	}
	if ip, err := netip.ParseAddr(strings.Trim(text, "[]")); err == nil {
		return "write " + net.JoinHostPort(ip.String(), "8080")
	}
	if _, _, err := net.SplitHostPort(text); err == nil {
		return "write " + clip(printable(text))
	}
	return "like 0.0.0.0:8080 or 127.0.0.1:9090"
}

// usualHost is the host that most people want: the API for everybody, admin for this machine.
func usualHost(v value) string {
	if v.path == "admin" || v.file == "--admin" {
		return "127.0.0.1"
	}
	return "0.0.0.0"
}

// portRule returns what is wrong with a port that must lie between lo and 65535, or "".
func portRule(port string, lo int) string {
	n, err := strconv.Atoi(port)
	if err != nil || n < lo || n > 65535 || strings.HasPrefix(port, "+") {
		return fmt.Sprintf("the port must be a number from %d to 65535", lo)
	}
	return ""
}

// validHost reports whether host is an IP address or looks like a host name.
func validHost(host string) bool {
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	if host == "" || len(host) > 253 || strings.Contains(host, "..") || strings.HasPrefix(host, ".") {
		return false
	}
	letters := false // without one, 10.0.0 or 300.1.1.1 is an address that was mistyped
	for _, r := range host {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r == '-' || r == '_'
		if !letter && !strings.ContainsRune("0123456789.", r) {
			return false
		}
		letters = letters || letter
	}
	return letters
}
