"""The contract of `docs/http.md`: arguments, answers, problems and the document that describes them."""
