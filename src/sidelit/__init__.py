r"""# The press

> Sidelit reads literate Python and prints it: words on the left, code on the right, in several languages.

The package is a pipeline of flat modules, and text flows through them in this order. Each takes frozen
records and returns frozen records, none looks back, and none runs the code it prints.

| stage | takes | gives |
|---|---|---|
| `source` | a Python file | sections: commentary and the lines it is about |
| `anchors` | sections | names that last from release to release |
| `markup` | commentary | tokens, one for each sentence a translator sees |
| `catalog` | tokens | the same tokens in another language |
| `content`, `edition` | all of these | a page in the language it was written in, and in the others |
| `prose`, `math`, `code` | tokens, formulas, files | HTML that is safe to publish |
| `assemble`, `page` | pieces | a page through its template |
| `site`, `printing` | a configuration, or any files | every file of a site, in memory |
| `build`, `serve`, `mkdocs_plugin` | these files | a folder, a server, a build of mkdocs |

Start with `site`, which is the pipeline in one place, or with `python -m sidelit --help`.
"""
