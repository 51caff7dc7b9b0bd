"""Answer one SELECT over stores, in a process that can be killed. DuckDB is the engine.

| module         | content                                                             |
|----------------|---------------------------------------------------------------------|
| `statement`    | the bounds of the text, EXPLAIN, and the words for times and chance |
| `struct_types` | SQL types of models, Avro, Protobuf and JSON Schema                 |
| `tables`       | a store as tables                                                   |
| `plan`         | DuckDB's plan as the part of each table that a query reads          |
| `filters`      | the filters of a plan as values and ranges                          |
| `known_lookups`| lookups that need no plan for the next key                          |
| `messages`     | frames between the server and a query process                       |
| `places`       | how many statements run, in all and of one caller                   |
| `pool`         | the query processes of a server                                     |
| `session`      | one query process and one statement, as the server sees them        |
| `process`      | a query process                                                     |
| `sandbox`      | no files, no network, bounded memory                                |
| `serving`      | answers the server in a query process                               |
| `engine`       | DuckDB, locked down, in a query process                             |
| `feeds`        | the rows of a table, as DuckDB scans them                           |
| `told_errors`  | DuckDB's errors as what to write instead                            |

It knows no HTTP, no Kafka and no RocksDB. Only `engine` imports DuckDB.
"""
