package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
)

// maxKey is the longest API key read; real ones have some hundred bytes.
const maxKey = 4096

// keyFile stores the path of a pool's key file and the key in it. No error shows anything of the key, and none shows the
// path when it looks as if the key itself had been written there.
func (d *decoder) keyFile(v value, p *Pool) {
	if v.kind != kindText {
		d.failShowing(v, "", fmt.Sprintf("is %s, want the path of a file", v.kind), "write the key into a file and name the file here")
		return
	}
	if looksSecret(v.text) || looksRandom(v.text) {
		d.failShowing(v, "", "looks like a key, want the path of a file that holds it", "write the key into a file and name the file here")
		return
	}
	if !d.path(v, &p.APIKeyFile) {
		return
	}
	key, open, rule, hint := readKey(p.APIKeyFile)
	if rule != "" {
		d.fail(v, rule, hint)
		return
	}
	if open {
		d.warn(v, "every user of this machine may read the key", "chmod 600, or defaultMode: 0400 of the secret's volume")
	}
	p.APIKey = NewSecret(key)
}

// readKey reads a key file; open says that everybody may read it.
func readKey(path string) (key string, open bool, rule, hint string) {
	info, err := os.Stat(path) // before opening: a pipe would block
	if err == nil && !info.Mode().IsRegular() {
		return "", false, "is not a file", "name the file itself, not its folder"
	}
	var data []byte
	if err == nil {
		data, err = readSome(path, maxKey+1)
	}
	if err != nil {
		rule, hint = unreadable(err)
		return "", false, rule, hint
	}
	if len(data) > maxKey {
		return "", false, fmt.Sprintf("the file has more than %d bytes", maxKey), "it must hold the key alone"
	}
	key = strings.TrimSpace(string(data))
	switch {
	case key == "":
		return "", false, "the file is empty", "write the key into it, on one line"
	case strings.ContainsAny(key, "\r\n"):
		return "", false, "the file has more than one line", "it must hold the key alone"
	case strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r >= 0x7f }):
		return "", false, "the key has characters that a header cannot carry", "it must be one word of printable ASCII"
	}
	return key, info.Mode().Perm()&0o004 != 0, "", ""
}

// readSome reads at most n bytes of a file.
func readSome(path string, n int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, n))
}

// unreadable says why a file cannot be read and what to do; the texts do not depend on the platform.
func unreadable(err error) (rule, hint string) {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "there is no such file", "create it, or mount the volume that holds it; a relative path starts at the configuration's folder"
	case errors.Is(err, fs.ErrPermission):
		return "the file may not be read", fmt.Sprintf("let user id %d read it", os.Getuid())
	}
	var pe *fs.PathError
	if errors.As(err, &pe) {
		err = pe.Err
	}
	return "cannot be read: " + err.Error(), ""
}
