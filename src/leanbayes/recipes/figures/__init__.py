"""The figures of the recipes: results, or plain lists and dictionaries, in; SVG strings out."""
