"""The functions of `import deepnmt`, one file each. The only package that joins packages of the same row."""
