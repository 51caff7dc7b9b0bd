"""What `http.md` fixes: arguments, answers, problems and the document that describes them."""
