package config

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"pointsman.dev/pointsman/internal/spelling"
)

// How values, keys and suggestions look in an error.

// show returns a scalar as an error shows it, "" for what has no short form or may be a secret.
func show(v value) string {
	switch v.kind {
	case kindText:
		if holdsSecret(v.text) || strings.Contains(v.text, "@") {
			return ""
		}
		return quote(v.text)
	case kindInt, kindFloat, kindBool:
		return clip(v.text)
	}
	return ""
}

func quote(text string) string { return strconv.Quote(clip(text)) }

// clip shortens to what fits a line.
func clip(text string) string {
	const most = 80
	if len(text) <= most {
		return text
	}
	cut := most
	for cut > 0 && !utf8.RuneStart(text[cut]) {
		cut--
	}
	return text[:cut] + "..."
}

// printable returns a key for a path: control characters and secrets replaced.
func printable(key string) string {
	if holdsSecret(key) {
		return hidden
	}
	return clip(strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, key))
}

// looksSecret reports whether a text is shaped like an API key or token, wherever it was written.
func looksSecret(text string) bool {
	text = strings.TrimSpace(text)
	for _, prefix := range []string{"sk-", "sk_", "pk-", "hf_", "ghp_", "gho_", "github_pat_", "glpat-", "xoxb-", "xoxp-", "AKIA", "ASIA", "AIza", "eyJ", "Bearer ", "bearer ", "nvapi-", "gsk_"} {
		if strings.HasPrefix(text, prefix) && len(text) >= len(prefix)+6 {
			return true
		}
	}
	return false
}

// holdsSecret reports whether a text has a word in it that looksSecret, or is a key in PEM.
func holdsSecret(text string) bool {
	return looksSecret(text) || strings.Contains(text, "-----BEGIN") || slices.ContainsFunc(strings.FieldsFunc(text, func(r rune) bool {
		return r != '-' && r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r)
	}), looksSecret)
}

// looksRandom reports whether a text that should be a path is shaped like a generated key instead.
func looksRandom(text string) bool {
	if len(text) < 20 || strings.ContainsAny(text, "/.\\ ") {
		return false
	}
	return strings.ContainsAny(text, "0123456789") && strings.ContainsFunc(text, unicode.IsLetter)
}

// shortDuration is a duration without its zero parts: 1h, 90s as 1m30s.
func shortDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// shortSize is a size in the largest unit that divides it.
func shortSize(n int64) string {
	for _, u := range []struct {
		name  string
		bytes int64
	}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if n > 0 && n%u.bytes == 0 {
			return fmt.Sprintf("%d%s", n/u.bytes, u.name)
		}
	}
	return strconv.FormatInt(n, 10)
}

// otherWords are what other programs call a key of ours; the value is the last element of our path.
func otherWords() map[string]string {
	return map[string]string{
		"port": "listen", "bind": "listen", "addr": "listen", "address": "listen", "host": "listen",
		"metrics": "admin", "metrics_addr": "admin", "admin_addr": "admin", "admin_listen": "admin",
		"timeout": "limit", "time_limit": "limit", "request_timeout": "limit", "read_timeout": "limit", "max_duration": "limit",
		"idle_timeout": "idle", "stream_idle_timeout": "idle", "stream_timeout": "idle", "ttft_timeout": "first_byte", "ttft": "first_byte",
		"drain_timeout": "drain", "shutdown_timeout": "drain", "grace": "drain", "grace_period": "drain", "termination_grace_period_seconds": "drain",
		"pre_stop": "drain_delay", "lame_duck": "drain_delay", "shutdown_delay": "drain_delay",
		"ping": "keepalive", "heartbeat": "keepalive", "ping_interval": "keepalive", "keepalive_seconds": "keepalive",
		"cert": "cert_file", "certificate": "cert_file", "crt": "cert_file", "private_key": "key_file", "ssl": "tls", "https": "tls",
		"replicas": "peers", "cluster": "peers", "gossip": "peers", "siblings": "peers", "members": "list", "hosts": "list", "peers": "list",
		"ca": "ca_file", "ca_cert": "ca_file", "client_ca": "ca_file", "server_name": "name", "mtls": "tls",
		"allowed_origins": "origins", "allow_origins": "origins", "allow_origin": "origins",
		"max_queue": "queue", "queue_size": "queue", "size": "max", "length": "max", "depth": "max",
		"queue_timeout": "queue", "fallback": "overflow", "spillover": "overflow", "scale_to_zero": "hold", "cold_start": "hold",
		"max_body_size": "max_body", "body_limit": "max_body", "client_max_body_size": "max_body",
		"backends": "endpoints", "upstreams": "endpoints", "servers": "endpoints", "targets": "endpoints",
		"urls": "endpoints", "url": "endpoints", "workers": "endpoints", "addresses": "endpoints",
		"clusters": "pools", "groups": "pools", "upstream": "pools",
		"strategy": "policy", "algorithm": "policy", "lb_policy": "policy", "load_balancing": "policy", "routing": "policy",
		"api_key": "api_key_file", "key": "api_key_file", "token": "api_key_file", "apikey": "api_key_file", "password": "api_key_file",
		"aliases": "models", "routes": "models", "logging": "log", "log_level": "log", "verbosity": "level",
		"kv": "projected_kv", "max_kv": "projected_kv", "max_running": "max_num_seqs", "max_waiting": "waiting",
		"target": "serves", "alias": "serves", "to": "serves", "pool": "pools", "name": "pool", "hostname": "dns", "label_selector": "selector", "labels": "selector", "match_labels": "selector", "service": "dns",
	}
}

// otherValues are what other programs call a value of ours.
func otherValues() map[string]string {
	return map[string]string{
		"round_robin": "least_request", "roundrobin": "least_request", "random": "least_request", "least_conn": "least_request",
		"least_connections": "least_request", "p2c": "least_request", "cache_aware": "prefix", "kv": "prefix", "affinity": "prefix",
		"trace": "debug", "fatal": "error", "critical": "error", "logfmt": "text", "console": "text", "plain": "text",
		"no": "off", "none": "off", "false": "off", "disabled": "off", "never": "off", "on": "default", "true": "default", "yes": "default",
		"queue": "requests", "shortest_queue": "requests", "cost": "seconds", "time": "seconds",
	}
}

// unknownKey explains a key that does not exist at its place.
func unknownKey(key, path string, fields []field) (rule, hint string) {
	all := make([]string, len(fields))
	for i, f := range fields {
		all[i] = f.name
	}
	rule = "unknown key"
	plain := normal(key)
	if near := otherWords()[plain]; slices.Contains(all, near) {
		if near == "api_key_file" {
			return rule, "a key is not written here: put it into a file and name that with api_key_file"
		}
		return rule, "did you mean " + near + "?"
	}
	if near := Closest(key, all); near != "" {
		return rule, "did you mean " + near + "?"
	}
	if at := elsewhere(plain, path); at != "" {
		return rule, "it belongs to " + at
	}
	if near := otherWords()[plain]; near != "" {
		return rule, "did you mean " + near + ", in " + elsewhere(near, path) + "?"
	}
	return rule, "known here: " + strings.Join(all, ", ")
}

// elsewhere returns where a key of that name exists, if not here.
func elsewhere(key, path string) string {
	for _, known := range Keys() {
		if i := strings.LastIndexByte(known, '.'); known != path && known[i+1:] == key {
			if i < 0 {
				return "the top of the file"
			}
			return known[:i]
		}
	}
	return ""
}

// normal is a key without the habits of other formats: maxBody, Max-Body and max_body are one.
func normal(key string) string {
	var b strings.Builder
	for i, r := range key {
		switch {
		case r == '-' || r == ' ':
			b.WriteByte('_')
		case unicode.IsUpper(r):
			if i > 0 && !strings.HasSuffix(b.String(), "_") && i < len(key)-1 && unicode.IsLower(rune(key[i-1])) {
				b.WriteByte('_')
			}
			b.WriteRune(unicode.ToLower(r))
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// Closest returns the word that text is probably a misspelling of, or "".
func Closest(text string, words []string) string { return spelling.Word(normal(clip(text)), words) }
