"""`stateline reset`: an application, or a part of it, starts over.

`where_to` and `scope` say what is asked, `found` what there is, `plan` what follows from both (pure), `running` what is
in the way, `execution` does it.
"""
