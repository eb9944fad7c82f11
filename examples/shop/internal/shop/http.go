package shop

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/bloomguard/bloom"
)

const maxBody = 64 << 10 // bytes

// Reader answers for products. It is the shop's Guard, but where others are
// compared with it.
type Reader interface {
	Get(ctx context.Context, id string) (Product, error)
}

// Handler serves the products that read answers for, and metrics.
func (s *Shop) Handler(read Reader) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /products/{id}", func(w http.ResponseWriter, r *http.Request) { s.get(w, r, read) })
	mux.HandleFunc("POST /products", s.post)
	mux.HandleFunc("PUT /products/{id}", s.put)
	mux.HandleFunc("DELETE /products/{id}", s.delete)
	products := s.metrics.observe(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), s.cfg.Timeout)
		defer cancel()
		mux.ServeHTTP(w, r.WithContext(ctx))
	}))

	root := http.NewServeMux()
	root.Handle("/products", products)
	root.Handle("/products/", products)
	root.Handle("GET /metrics", s.metrics.handler())
	return root
}

func (s *Shop) get(w http.ResponseWriter, r *http.Request, read Reader) {
	p, err := read.Get(r.Context(), r.PathValue("id")) // which validates the id
	if err != nil {
		s.fail(w, r, err)
		return
	}
	answer(w, http.StatusOK, p)
}

func (s *Shop) post(w http.ResponseWriter, r *http.Request) {
	p, err := decode(w, r)
	if err == nil && p.ID != 0 {
		err = fmt.Errorf("%w: id %d: want none, the shop gives it", ErrInvalidProduct, p.ID)
	}
	if err == nil {
		p, err = s.Create(r.Context(), p)
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	w.Header().Set("Location", "/products/"+itemOf(p.ID))
	answer(w, http.StatusCreated, p)
}

func (s *Shop) put(w http.ResponseWriter, r *http.Request) {
	id, err := pathID(r)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	p, err := decode(w, r)
	if err == nil && p.ID != 0 && p.ID != id {
		err = fmt.Errorf("%w: id %d: want none, or %d as in the path", ErrInvalidProduct, p.ID, id)
	}
	if err == nil {
		p.ID = id
		err = s.Update(r.Context(), p)
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	answer(w, http.StatusOK, p)
}

func (s *Shop) delete(w http.ResponseWriter, r *http.Request) {
	id, err := pathID(r)
	if err == nil {
		err = s.Delete(r.Context(), id)
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func pathID(r *http.Request) (int64, error) {
	id := r.PathValue("id")
	if err := ValidateID(id); err != nil {
		return 0, err
	}
	return strconv.ParseInt(id, 10, 64)
}

func decode(w http.ResponseWriter, r *http.Request) (Product, error) {
	p := Product{Stock: []int{}}
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	d.DisallowUnknownFields()
	err := d.Decode(&p)
	if err == nil && d.More() {
		err = errors.New("more than one value")
	}
	if err != nil {
		return p, fmt.Errorf("%w: %w", ErrInvalidProduct, err)
	}
	if p.Stock == nil { // null
		p.Stock = []int{}
	}
	return p, nil
}

// fail chooses the code. Only what the client did wrong is explained to it.
func (s *Shop) fail(w http.ResponseWriter, r *http.Request, err error) {
	code, text := http.StatusInternalServerError, "internal error"
	switch {
	case errors.Is(err, ErrInvalidID):
		code, text = http.StatusBadRequest, ValidateID(r.PathValue("id")).Error()
	case errors.Is(err, ErrInvalidProduct):
		code, text = http.StatusBadRequest, err.Error()
	case errors.Is(err, bloom.ErrNotFound), errors.Is(err, sql.ErrNoRows):
		code, text = http.StatusNotFound, "no such product"
	case errors.Is(err, ErrUnavailable), errors.Is(err, bloom.ErrOverloaded), errors.Is(err, context.DeadlineExceeded),
		errors.Is(err, context.Canceled): // the client has gone, but for the metrics
		code, text = http.StatusServiceUnavailable, "try again"
		w.Header().Set("Retry-After", "1")
	}
	if code >= http.StatusInternalServerError && r.Context().Err() != context.Canceled { // else the client has gone
		s.cfg.Log.Warn("request failed", "method", r.Method, "path", r.URL.Path, "code", code, "err", err)
	}
	answer(w, code, map[string]string{"error": text})
}

func answer(w http.ResponseWriter, code int, body any) {
	b, err := json.Marshal(body)
	if err != nil {
		http.Error(w, "internal error", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	w.Write(append(b, '\n'))
}
