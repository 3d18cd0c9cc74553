"""What `import deepnmt` offers: one function, one file. The only place where rooms of one row meet."""
