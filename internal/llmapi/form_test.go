package llmapi

import (
	"bytes"
	"errors"
	"mime/multipart"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const audioPath = "/v1/audio/transcriptions"

// upload makes a form as clients send it; a field named file is a file of n bytes.
func upload(t testing.TB, fileBytes int, fields ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	for i := 0; i < len(fields); i += 2 {
		if fields[i] == "file" {
			f, err := w.CreateFormFile("file", fields[i+1])
			if err != nil {
				t.Fatal(err)
			}
			// Contents that look like the delimiter, and end in a part of it.
			fake := "\r\n--" + w.Boundary()[:20] + "\r\r\n--\r"
			_, _ = f.Write([]byte(strings.Repeat(fake, fileBytes/len(fake)+1)[:fileBytes]))
			continue
		}
		if err := w.WriteField(fields[i], fields[i+1]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestForm(t *testing.T) {
	api := apiOf(t, audioPath)
	for _, fields := range [][]string{
		{"model", "whisper-1", "file", "a.wav", "stream", "true", "stream_include_usage", "true", "max_completion_tokens", "9", "prompt", "hi"},
		{"file", "a.wav", "temperature", "0", "max_completion_tokens", "9", "prompt", "hi", "stream_include_usage", "1", "stream", "true", "model", "whisper-1"},
	} {
		body := upload(t, 2000, fields...)
		for _, size := range []int{1, 2, 3, 17, 100, 1 << 20} {
			r, err := scan(new(Scanner), api, body, func(n int) int { return min(n, size) })
			if err != nil {
				t.Fatalf("chunks of %d: %v", size, err)
			}
			at := int64(bytes.Index(body, []byte("whisper-1")))
			want := Request{Model: "whisper-1", HasModel: true, ModelStart: at, ModelEnd: at + 9, Multipart: true, Stream: true, IncludeUsage: true, MaxTokens: 9, N: 1, PromptBytes: nominalAudio + 2}
			if d := cmp.Diff(want, *r); d != "" {
				t.Fatalf("chunks of %d: %s", size, d)
			}
			if string(r.ModelLiteral("x y")) != "x y" {
				t.Error("a form's value has no quotes")
			}
		}
	}
}

func TestFormNoModel(t *testing.T) {
	r, err := scan(new(Scanner), apiOf(t, audioPath), upload(t, 10, "file", "model"), all)
	if err != nil || r.HasModel {
		t.Errorf("%+v %v, want no model", r, err)
	}
	// A file that is named model is no model field.
	body := strings.ReplaceAll(string(upload(t, 0, "other", "x")), `name="other"`, `name="other"; filename="model"`)
	if r, err := scan(new(Scanner), apiOf(t, audioPath), []byte(body), all); err != nil || r.HasModel {
		t.Errorf("%+v %v, want no model", r, err)
	}
}

func TestFormErrors(t *testing.T) {
	good := string(upload(t, 10, "file", "f", "model", "m"))
	tests := []struct{ name, body, reason, text string }{
		{"empty", "", ReasonBadForm, "empty"},
		{"JSON", `{"model":"m"}`, ReasonBadForm, "ends early"},
		{"JSON lines", "{\r\n}\r\n", ReasonBadForm, "does not begin with its boundary"},
		{"LF only", strings.ReplaceAll(good, "\r\n", "\n"), ReasonBadForm, "does not begin with its boundary"},
		{"cut", good[:len(good)-4], ReasonBadForm, "ends early"},
		{"model twice", string(upload(t, 1, "model", "a", "file", "f", "model", "b")), ReasonDuplicateKey, `"model" twice`},
		{"model too long", string(upload(t, 1, "model", strings.Repeat("m", 1030))), ReasonBadForm, "too long"},
		{"stream a word", string(upload(t, 1, "stream", "maybe")), ReasonBadType, "true or false"},
		{"endless first line", strings.Repeat("-", 1000), ReasonBadForm, "too long"},
		{"endless header", "--b\r\n" + strings.Repeat("x: y\r\n", 5000), ReasonBadForm, "too long"},
		{"bare line feed", "--b\r\nContent-Disposition: form-data; name=model\n\r\nx\r\n--b--", ReasonBadForm, "bare line feed"},
		{"delimiter right behind a header", "--b\r\nContent-Disposition: form-data; name=model\r\n\r\n--b--\r\n", ReasonBadForm, "no content"},
		{"bad delimiter", "--b\r\n\r\nx\r\n--bc\r\n", ReasonBadForm, "malformed form delimiter"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for _, size := range []int{1, 10, 1 << 20} {
				_, err := scan(new(Scanner), apiOf(t, audioPath), []byte(tt.body), func(n int) int { return min(n, size) })
				var e *Error
				if !errors.As(err, &e) || e.Status != 400 || e.Reason != tt.reason || !strings.Contains(e.Message, tt.text) {
					t.Errorf("chunks of %d: %v, want 400 %s ...%s", size, err, tt.reason, tt.text)
				}
			}
		})
	}
}

func TestFormKeepsNoFile(t *testing.T) {
	body, s, api := upload(t, 8<<20, "file", "f", "model", "m"), new(Scanner), apiOf(t, audioPath)
	if n := testing.AllocsPerRun(1, func() {
		if _, err := scan(s, api, body, func(n int) int { return min(n, 32<<10) }); err != nil {
			t.Fatal(err)
		}
	}); n > 40 {
		t.Errorf("a file of 8 MB allocates %v times, want a few for the headers", n)
	}
}

func FuzzForm(f *testing.F) {
	f.Add(upload(f, 100, "file", "f", "model", "m", "stream", "true"), uint64(1))
	f.Add([]byte("--b\r\nContent-Disposition: form-data; name=model\r\n\r\nx\r\n--b--"), uint64(2))
	api := apiOf(f, audioPath)
	f.Fuzz(func(t *testing.T, body []byte, seed uint64) {
		whole, err := scan(new(Scanner), api, body, all)
		size := 1 + int(seed%60)
		split, splitErr := scan(new(Scanner), api, body, func(n int) int { return min(n, size) })
		if (err == nil) != (splitErr == nil) || err == nil && !cmp.Equal(*whole, *split) {
			t.Fatalf("split: %+v %v, whole: %+v %v", split, splitErr, whole, err)
		}
		if err != nil {
			return
		}
		line, _, _ := bytes.Cut(bytes.TrimLeft(body, "\r\n"), []byte("\r\n"))
		form, formErr := multipart.NewReader(bytes.NewReader(body), string(bytes.TrimPrefix(line, []byte("--")))).ReadForm(1 << 20)
		if formErr != nil {
			return // Go's reader is stricter on headers
		}
		if m := form.Value["model"]; len(m) == 1 && m[0] != whole.Model {
			t.Fatalf("model %q, mime/multipart %q", whole.Model, m[0])
		}
	})
}
