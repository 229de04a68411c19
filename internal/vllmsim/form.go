package vllmsim

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
)

// form is a decoded multipart body: the file's bytes and the other fields.
type form struct {
	file   []byte
	values map[string]string
}

func readForm(contentType string, body []byte) (form, error) {
	media, params, err := mime.ParseMediaType(contentType)
	if err != nil || media != "multipart/form-data" {
		return form{}, fmt.Errorf("reading form: content type %q is not multipart/form-data", contentType)
	}
	f := form{values: map[string]string{}}
	parts := multipart.NewReader(bytes.NewReader(body), params["boundary"])
	for {
		part, err := parts.NextPart()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return form{}, fmt.Errorf("reading form: %w", err)
		}
		data, err := io.ReadAll(part)
		if err != nil {
			return form{}, fmt.Errorf("reading form field %q: %w", part.FormName(), err)
		}
		if part.FormName() == "file" {
			f.file = data
		} else {
			f.values[part.FormName()] = string(data)
		}
	}
	if f.file == nil {
		return form{}, errors.New("reading form: no field called file")
	}
	return f, nil
}
