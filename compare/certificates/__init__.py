"""What certificates are made of, and how: what is to be recorded, the recording in a child, and having it judged.

`recording`, `training` and `heap` run in children, the others in the parent; what judges is `compare.agreement`.
"""
